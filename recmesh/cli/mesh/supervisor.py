"""The supervisor: a small process that stays, starts the components, adopts the living, restarts what dies.

It keeps nothing that it could not find out again: what runs is in the records of `recmesh.runtime.process`,
what should run is in `run/round.json` (written by `recmesh up`). So it may be killed at any time; the
components live on, and the next one goes on where it stopped. Signals: SIGTERM stops everything and ends it,
SIGHUP makes it read the round again.

    python -m recmesh.cli.mesh.supervisor --home FOLDER
"""

import argparse
import logging
import os
import signal
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from recmesh.cli.mesh import exits, rounds, state
from recmesh.cli.mesh.component import Component
from recmesh.cli.mesh.disk import DiskWatch
from recmesh.cli.mesh.home import Home, write_private
from recmesh.cli.mesh.probes import Heard, ask
from recmesh.cli.mesh.stop import stop_everything
from recmesh.cli.mesh.watch import LARGEST_DELAY_S, Action, State, Watch
from recmesh.runtime.clock import system_clock
from recmesh.runtime.errors import MeshError
from recmesh.runtime.process import ProcessHandle, find, launch

TICK_S = 0.1
IDLE_TICK_S = 0.4
"""While all is well; the largest delay before a death is seen."""
PROBE_EVERY_S = {State.STARTING: 0.1, State.UNREADY: 0.5, State.READY: 2.0}
MAX_LOG_BYTES = 64 * 2**20
LOG_CHECK_EVERY_S = 60.0
_AFTER_FAILURE_S = 1.0

log = logging.getLogger("supervisor")


@dataclass(slots=True)
class Kept:
    """A component with what is known of it."""

    component: Component
    watch: Watch = field(default_factory=Watch)
    handle: ProcessHandle | None = None
    probe: Future[Heard] | None = None
    reason: str = ""
    """What it said last of why it is not ready."""
    next_probe: float = 0.0
    last_exit: str = ""
    last_exit_at: float = 0.0


class Supervisor:
    """Keeps the components of one data folder running; single-threaded but for the probes."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._kept: dict[str, Kept] = {}
        self._state = state.load(home.mesh_file)
        self._written: object = None
        self._probes = ThreadPoolExecutor(8, "probe")
        self._wake = threading.Event()
        self._stop = False
        self._reload = True
        self._next_log_check = 0.0
        self._disk = DiskWatch()

    def run(self) -> None:
        """Until SIGTERM; then everything is stopped."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        signal.signal(signal.SIGHUP, self._on_signal)
        try:
            while not self._stop:
                try:
                    self.tick(system_clock.now())
                except Exception:  # a full disk or a bug here must not end the restarting of what dies
                    log.exception("a look at the mesh failed; the next one follows")
                    self._wake.wait(_AFTER_FAILURE_S)
                self._wake.wait(IDLE_TICK_S if self._state.ready else TICK_S)
                self._wake.clear()
        finally:
            self._probes.shutdown(wait=False, cancel_futures=True)
        log.info("stopping everything")
        stop_everything(self._home, on_exit=self._record_exit)

    def tick(self, now: float) -> None:
        """Look at everything once, act, write down what changed."""
        if self._reload:
            self._reload = False
            self._read_round(now)
        self._watch_disk(now)
        startable = self._startable_stage()
        for kept in self._kept.values():
            self._look(kept, now)
            action = kept.watch.decide(
                now, alive=kept.handle is not None, may_start=kept.component.stage <= startable
            )
            if action is Action.START:
                self._start(kept, now)
            elif action is Action.KILL and kept.handle:
                log.warning("%s answers nobody: killed", kept.component.name)
                kept.handle.kill()
        if now >= self._next_log_check:
            self._next_log_check = now + LOG_CHECK_EVERY_S
            self._shorten_logs()
        self._write_state()

    def _read_round(self, now: float) -> None:
        """Takes over the settings of the last `up`: adopts what fits them, stops what does not."""
        asked = rounds.load(self._home)
        if asked is None:
            self._state.error = "there is no round.json: run `recmesh up`"
            return
        self._state.ports, self._state.round, self._state.error = asked.ports, asked.id, ""
        wanted = asked.components
        found = {handle.name: handle for handle in find(self._home.components)}
        names = {component.name for component in wanted}
        unwanted = [handle for name, handle in found.items() if name not in names]
        unwanted += [found[c.name] for c in wanted if c.name in found and found[c.name].start.tag != c.tag]
        self._end(unwanted)
        previous = self._kept
        self._kept = {}
        for component in wanted:
            kept = previous.get(component.name) or Kept(component)
            kept.component = component
            self._kept[component.name] = kept
            handle = found.get(component.name)
            if handle is None or handle in unwanted:
                kept.handle, kept.watch = None, Watch(restarts=kept.watch.restarts)
            elif kept.handle != handle:
                log.info("%s adopted, pid %d", component.name, handle.pid)
                kept.handle = handle
                kept.watch.adopted(now)
            kept.watch.largest_delay_s = float(asked.config.get("restart_delay_s", LARGEST_DELAY_S))

    def _end(self, handles: list[ProcessHandle]) -> None:
        for handle in handles:
            log.info("%s is stopped: no longer wanted, or its settings changed", handle.name)
            handle.terminate(0)
        for handle in handles:
            record = handle.terminate(15.0)
            if record:
                self._record_exit(handle)
            handle.forget()

    def _watch_disk(self, now: float) -> None:
        """NATS starts again once there is room after there was none; the services' connections come back."""
        objection, before = self._home.room.objection(), self._disk.full
        if objection and not before:
            log.warning("%s; writes are refused until there is room again", objection)
        restart = self._disk.saw(objection, now)
        kept = self._kept.get("nats")
        if restart and kept is not None and kept.handle is not None:
            log.warning("the data folder has room again: NATS is restarted, so that its streams take writes")
            kept.handle.terminate(0)

    def _look(self, kept: Kept, now: float) -> None:
        """Its process and its probe."""
        if kept.handle is not None and (record := kept.handle.exit()) is not None:
            log.warning("%s (pid %d) ended: %s", kept.component.name, kept.handle.pid, record.reason)
            self._record_exit(kept.handle)
            kept.last_exit, kept.last_exit_at = record.reason, record.ended_at
            kept.handle.forget()
            kept.handle, kept.probe, kept.reason = None, None, ""
            kept.watch.died(now, exit_code=record.exit_code)
        if kept.probe is not None and kept.probe.done():
            heard = kept.probe.result()
            kept.watch.heard(heard.answer, now)
            kept.reason = heard.reason
            kept.probe = None
            patience_s = (now - kept.watch.since) * 0.05 if kept.watch.state is State.STARTING else 0.0
            kept.next_probe = now + max(PROBE_EVERY_S.get(kept.watch.state, 1.0), min(patience_s, 1.0))
        if kept.handle is not None and kept.probe is None and now >= kept.next_probe:
            kept.probe = self._probes.submit(ask, kept.component.probe)
            kept.probe.add_done_callback(lambda _: self._wake.set())

    def _start(self, kept: Kept, now: float) -> None:
        component = kept.component
        env = _base_env() | dict(component.env)
        try:
            for path, text in component.files.items():
                write_private(Path(path), text)
            kept.handle = launch(
                component.name, component.command, run_dir=self._home.components,
                log_path=self._home.log(component.name), env=env, tag=component.tag,
                cwd=Path(component.cwd) if component.cwd else None,
            )  # fmt: skip
        except (MeshError, OSError) as error:
            log.error("%s cannot be started: %s", component.name, error)
            kept.last_exit, kept.last_exit_at = str(error), now
            kept.watch.started(now)
            kept.watch.died(now, exit_code=None)
            return
        log.info("%s started, pid %d", component.name, kept.handle.pid)
        kept.watch.started(now)
        kept.next_probe = now

    def _startable_stage(self) -> int:
        """The highest stage that may start: all below it are ready."""
        for stage in sorted({kept.component.stage for kept in self._kept.values()}):
            members = [kept for kept in self._kept.values() if kept.component.stage == stage]
            if not all(kept.watch.state is State.READY for kept in members):
                return stage
        return sys.maxsize

    def _record_exit(self, handle: ProcessHandle) -> None:
        record = handle.exit()
        if record is None:
            return
        try:
            exits.append(self._home.exits_file, record)
        except OSError as error:
            log.error("an exit could not be written down: %s", error)

    def _write_state(self) -> None:
        self._state.supervisor_pid = os.getpid()
        self._state.components = {
            name: state.ComponentState(
                state=kept.watch.state.value, pid=kept.handle.pid if kept.handle else None,
                addresses=dict(kept.component.addresses), restarts=kept.watch.restarts,
                since=kept.watch.since, hopeless=kept.watch.hopeless,
                last_exit=kept.last_exit, last_exit_at=kept.last_exit_at, reason=kept.reason,
            )
            for name, kept in self._kept.items()
        }  # fmt: skip
        seen = (self._state.round, self._state.error, self._state.components)
        if seen == self._written:
            return
        try:
            self._state.save(self._home.mesh_file)
            self._written = seen
        except OSError as error:
            log.error("mesh.json cannot be written: %s", error)

    def _shorten_logs(self) -> None:
        """Keeps each log and one older part; writers append, so that cutting it is safe while they write."""
        for path in self._home.logs.glob("*.log"):
            try:
                if path.stat().st_size > MAX_LOG_BYTES:
                    part = path.with_suffix(".log.1")
                    part.write_bytes(path.read_bytes())
                    os.truncate(path, 0)
            except OSError as error:
                log.error("%s cannot be shortened: %s", path, error)

    def _on_signal(self, number: int, _frame: object) -> None:
        if number == signal.SIGHUP:
            self._reload = True
        else:
            self._stop = True
        self._wake.set()


def _base_env() -> dict[str, str]:
    """The own environment without settings: those of the components come from the configuration alone."""
    return {key: value for key, value in os.environ.items() if not key.startswith("RECMESH_")}


def main(arguments: list[str]) -> int:
    """Entry point; exit code 1 when another supervisor holds the folder."""
    parser = argparse.ArgumentParser(prog="recmesh-supervisor")
    parser.add_argument("--home", type=Path, required=True)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    home = Home(options.home)
    try:
        with home.lock("supervisor", "another supervisor runs"):
            Supervisor(home).run()
    except MeshError as error:
        log.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
