"""Carries a schedule out against a job that trains, and waits each time until the mesh has healed itself."""

import math
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from recmesh.chaos import append_only
from recmesh.chaos.report import Report
from recmesh.chaos.rival import Rival
from recmesh.chaos.schedule import LAST_S, MOVING, NEED_A_MOVE, STORES, Strike
from recmesh.chaos.victims import Held, Victims
from recmesh.client.rest import Client
from recmesh.client.views import Job
from recmesh.runtime.errors import DeadlineExceeded, FailedPrecondition, MeshError
from recmesh.runtime.process import ProcessHandle

T = TypeVar("T")
Tell = Callable[[str], None]

FAST_S, STEADY_S, SLOW_S = 0.0, 0.04, 0.25
"""Seconds of a step: when nothing more is disturbed, usually, and when the data would not last: while a gate is waited
for, and while more of the data is trained than of the strikes carried out."""
GATE_S = 45.0
"""Within which an armed gate must hold, a rollback on a busy machine included."""
TORN_S = 0.05
"""Between the gate's hold and the kill: what the gate parted has happened on its far side by then."""
LAST_SHARE = 0.9
"""From this share of the data on, the next snapshot is held up until all of it is trained."""
REWIND_WAIT_S = 2.0
WRITES_S = 20.0
"""For Valkey to write something that can be lost."""
SHIFTED_S = 2.0
"""A process goes on for so long with its clock set, before it is killed."""
HOLD_POLL_S = 0.005
HEAL_S = 300.0
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Scene:
    """A job on a mesh, as the harness sees it."""

    client: Client
    job_id: str
    victims: Victims
    pace: Path | None
    """The file that says how fast a counting job's workers go; None: the job is not one."""
    is_ready: Callable[[str], bool]
    """Whether a component of the mesh is ready."""
    rival: Rival
    valkey: Path
    """Its data folder."""


class Harness:
    """One run of a schedule."""

    def __init__(self, scene: Scene, report: Report, *, tell: Tell) -> None:
        self._scene, self._report, self._tell = scene, report, tell
        self._victims = scene.victims
        self._due = 0.0
        """The share of strikes that are carried out."""
        self._marks = [(time.monotonic(), append_only.marks(scene.valkey))]
        """When Valkey's file had how many bytes, before each strike."""
        self._others: dict[str, Callable[[Strike, ProcessHandle], bool]] = {
            "stop": self._stop, "hold": self._hold, "usurp": self._usurp, "rewind": self._rewind,
            "shift": self._shift, "last": self._last,
        }
        self._set_pace(STEADY_S)

    def carry_out(self, strikes: Sequence[Strike]) -> None:
        """All strikes, a missed one twice, as long as the job trains; then that may go as fast as it can."""
        try:
            self._until(self._trains, what="the job to train", within_s=HEAL_S)
            waiting, number = deque((strike, True) for strike in strikes), 0
            while waiting:
                strike, may_repeat = waiting.popleft()
                number += may_repeat
                self._due = number / len(strikes)
                job = self._job()
                if job.over or job.progress.share >= 1.0:
                    left = len(waiting) + 1
                    self._report.missed.append(f"{left} strikes: the job was trained before ({job.phase})")
                    return
                time.sleep(strike.after_s)
                self._marks.append((time.monotonic(), append_only.marks(self._scene.valkey)))
                self._tell(f"{number:3d}/{len(strikes)}  {strike}  · {job.progress.share:.0%} trained, "
                           f"generation {job.gen}, snapshot {job.snapshot}")
                was_hit = self._strike(strike)
                if strike.patient or not was_hit:
                    self._healed(strike)
                if not was_hit and may_repeat:
                    try_again(waiting, strike)
                elif not was_hit:
                    self._report.missed.append(f"{strike}: not reached, twice")
        finally:
            self._set_pace(FAST_S)

    # ---- one strike

    def _strike(self, strike: Strike) -> bool:
        """Whether it was carried out."""
        if not strike.gate:
            process = self._alive(strike.who)
            return process is not None and self._hit(strike, process, held=None)
        if strike.gate in NEED_A_MOVE:
            strike = self._move(strike)
        else:
            self._victims.arm(strike.who, strike.gate)
        if strike.trigger and (first := self._alive(strike.trigger)) is not None:
            self._kill(first, strike.trigger.partition("-")[0])
        self._set_pace(SLOW_S)
        held = self._victims.held(strike.who, strike.gate, within_s=GATE_S)
        if held is None:
            self._tell(f"         {strike.gate} was not reached")
            return False
        time.sleep(TORN_S)
        was_hit = self._hit(strike, held.process, held=held)
        self._victims.let_go(strike.who, strike.gate)
        return was_hit

    def _move(self, strike: Strike) -> Strike:
        """Arms the gate, then has a third parameter server come, or go; whoever will stand at the gate is struck."""
        job = self._job()
        grows = job.wanted.get("ps", 2) <= 2
        if strike.gate in MOVING:
            strike = replace(strike, who=MOVING[strike.gate][not grows])
        self._victims.arm(strike.who, strike.gate)
        patiently(lambda: self._scene.client.scale(self._scene.job_id, "ps", 3 if grows else 2))
        self._report.scalings += 1
        return strike

    def _hit(self, strike: Strike, process: ProcessHandle, *, held: Held | None) -> bool:
        was_hit = self._others.get(strike.how, self._plain_kill)(strike, process)
        if was_hit and strike.is_rare:
            self._report.rare[strike.how] += 1
        elif was_hit and strike.how == "kill" and held is not None and held.work:
            self._report.hits[strike.target] += 1
            self._report.gates[f"{strike.target}.{strike.gate}" if strike.target in STORES else strike.gate] += 1
        return was_hit

    def _plain_kill(self, strike: Strike, process: ProcessHandle) -> bool:
        return self._kill(process, strike.target)

    def _kill(self, process: ProcessHandle, target: str) -> bool:
        if not process.id.send(signal.SIGKILL):
            return False
        self._report.kills[target] += 1
        self._gone(process)
        return True

    def _stop(self, strike: Strike, process: ProcessHandle) -> bool:
        """Stopped at its gate, let go while it cannot run, and continued when others have taken it for dead."""
        if not process.id.send(signal.SIGSTOP):
            return False
        self._report.stops[strike.target] += 1
        try:
            if strike.gate:
                self._victims.let_go(strike.who, strike.gate)
            deadline = time.monotonic() + strike.stop_s
            while process.alive() and time.monotonic() < deadline:
                time.sleep(_POLL_S)
        finally:
            process.id.send(signal.SIGCONT)
        return True

    def _hold(self, strike: Strike, process: ProcessHandle) -> bool:
        """What comes to the gate, repeated or not, comes so late; the process does all else meanwhile."""
        deadline = time.monotonic() + strike.stop_s
        while time.monotonic() < deadline:
            self._victims.arm(strike.who, strike.gate)
            time.sleep(HOLD_POLL_S)
        self._victims.let_go(strike.who, strike.gate)
        return process.alive()

    def _last(self, strike: Strike, process: ProcessHandle) -> bool:
        """Killed when every sample is acknowledged, and jobmaster stands before the mark that would save them."""
        gate = "jobmaster.mark"
        self._set_pace(FAST_S)
        self._until(lambda: self._plainly().progress.share >= LAST_SHARE, what="the last samples", within_s=HEAL_S)
        self._victims.arm("jobmaster", gate)
        if self._victims.held("jobmaster", gate, within_s=GATE_S) is None:
            return False
        try:
            time.sleep(LAST_S)
            last = self._victims.process(strike.who)
            return last is not None and self._kill(last, strike.target)
        finally:
            self._victims.let_go("jobmaster", gate)

    def _usurp(self, strike: Strike, process: ProcessHandle) -> bool:
        """Stopped with its decision made, it wakes when another leads, and gives its command; then the other dies."""
        if not process.id.send(signal.SIGSTOP):
            return False
        try:
            self._victims.let_go(strike.who, strike.gate)
            self._scene.rival.rise()
            self._job()                             # only a leader answers
        finally:
            process.id.send(signal.SIGCONT)
        time.sleep(strike.stop_s)
        self._report.kills[strike.target] += self._scene.rival.fall()
        return True

    def _rewind(self, strike: Strike, process: ProcessHandle) -> bool:
        """What it has acknowledged in the last seconds, or since this run began, is gone when it comes back."""
        time.sleep(min(strike.stop_s, REWIND_WAIT_S))
        self._wait_for_writes()
        process = self._alive(strike.who) or process
        if not process.id.send(signal.SIGSTOP):
            return False
        now = time.monotonic()
        older = [marks for at, marks in self._marks if now - at >= strike.stop_s]
        then = older[-1] if older else self._marks[0][1]
        lost = append_only.cut(dict.fromkeys(then, 0) if math.isinf(strike.stop_s) else then)
        self._tell(f"         {lost:,} bytes of its writes are lost")
        return self._kill(process, strike.target) and lost > 0

    def _wait_for_writes(self) -> None:
        """While a rollback is under way nothing is leased, so nothing could be lost."""
        deadline = time.monotonic() + WRITES_S
        while append_only.marks(self._scene.valkey) == self._marks[-1][1] and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def _shift(self, strike: Strike, process: ProcessHandle) -> bool:
        """It jumps while it runs; the next one begins in the wrong time; and the next with what that one wrote."""
        try:
            self._victims.shift(strike.who, strike.shift_s)
            time.sleep(SHIFTED_S)
            self._kill(process, strike.target)
            self._healed(strike)
        finally:
            self._victims.shift(strike.who, 0.0)
        time.sleep(SHIFTED_S)
        last = self._alive(strike.who)
        return last is not None and self._kill(last, strike.target)

    # ---- looking

    def _alive(self, who: str) -> ProcessHandle | None:
        """The process, once it lives; None when it does not come back."""
        deadline = time.monotonic() + HEAL_S
        while time.monotonic() < deadline:
            if (process := self._victims.process(who)) is not None:
                return process
            if self._job().over:
                break
            time.sleep(_POLL_S)
        return None

    def _gone(self, process: ProcessHandle) -> None:
        deadline = time.monotonic() + 10.0
        while process.alive():
            if time.monotonic() > deadline:
                raise FailedPrecondition(f"{process.name} (pid {process.pid}) outlives SIGKILL")
            time.sleep(0.005)

    def _healed(self, strike: Strike) -> None:
        """The mesh is whole again and the job trains."""
        if strike.target not in ("worker", "ps"):
            self._until(lambda: self._scene.is_ready(strike.who), what=f"{strike.who} to be ready", within_s=HEAL_S)
        self._until(self._trains, what=f"the job to train after: {strike}", within_s=HEAL_S)

    def _trains(self) -> bool:
        job = self._job()
        if job.over or job.progress.share >= 1.0:
            return True
        running = Counter(role.role for role in job.roles if role.state == "running")
        return job.phase == "Running" and all(running[role] >= job.wanted.get(role, 1) for role in ("worker", "ps"))

    def _until(self, holds: Callable[[], bool], *, what: str, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while not holds():
            if time.monotonic() > deadline:
                raise DeadlineExceeded(f"waited {within_s:g} s for {what}")
            time.sleep(_POLL_S)

    def _plainly(self) -> Job:
        return patiently(lambda: self._scene.client.job(self._scene.job_id))

    def _job(self) -> Job:
        job = self._plainly()
        self._set_pace(STEADY_S if job.progress.share < 0.8 * self._due else SLOW_S)
        return job

    def _set_pace(self, step_s: float) -> None:
        if self._scene.pace is not None:
            new = self._scene.pace.with_suffix(".new")
            new.write_text(str(step_s))
            new.replace(self._scene.pace)


def try_again(waiting: deque[tuple[Strike, bool]], strike: Strike) -> None:
    """Once more, after all others but the one that ends the job."""
    is_end_ahead = bool(waiting) and waiting[-1][0].how == "last"
    waiting.insert(len(waiting) - is_end_ahead, (strike, False))


def patiently(question: Callable[[], T], *, within_s: float = HEAL_S) -> T:
    """The answer, however often what is asked is killed before it gives it."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            return question()
        except MeshError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_S)
