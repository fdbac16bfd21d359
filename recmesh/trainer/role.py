"""What every role does: say who it is, beat, end with a clear exit code."""

import logging
import os
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from recmesh.formats.inhand import VARIABLE
from recmesh.runtime.errors import InvalidArgument, MeshError, NotFound, Violation
from recmesh.runtime.rpc import sync_channel
from recmesh.runtime.tls import ROLE_NAME, Tls
from recmesh.trainer.patience import DEFINITE, NoLongerWanted, patiently
from recmesh.trainer.ports import Assignment, Beat, BeatReply, Runs

_log = logging.getLogger(__name__)
ROLES = ("ps", "worker", "data", "evaluator", "finisher")
LEAST_BEAT_S = 0.2
"""Between two heartbeats, however soon one is asked for."""


@dataclass(frozen=True)
class Identity:
    """Who this process is, from its environment."""

    role: str
    index: int
    job_id: str
    jobmaster: str
    token: str
    work_dir: Path
    in_hand: str = ""
    """The file that names the batch in work; empty: none is kept."""
    tls: Tls | None = None
    role_name: str = ""
    """What certificates of other roles are issued for; empty: as those of services."""
    incarnation: str = field(default_factory=lambda: uuid.uuid4().hex)
    host: str = field(default_factory=socket.gethostname)
    """The machine; in a pod its node's name."""
    pid: int = field(default_factory=os.getpid)

    @staticmethod
    def from_env(env: Mapping[str, str]) -> "Identity":
        """InvalidArgument names each variable that is missing or wrong."""
        wrong: list[Violation] = []
        for name in ("RECMESH_ROLE", "RECMESH_JOB_ID", "RECMESH_JOBMASTER"):
            if not env.get(name):
                wrong.append(Violation(name, "is not set"))
        if env.get("RECMESH_ROLE") and env["RECMESH_ROLE"] not in ROLES:
            wrong.append(Violation("RECMESH_ROLE", f"{env['RECMESH_ROLE']!r} is none of {', '.join(ROLES)}"))
        if not env.get("RECMESH_ROLE_INDEX", "0").isdigit():
            wrong.append(Violation("RECMESH_ROLE_INDEX", "is no number"))
        if wrong:
            raise InvalidArgument("a role's process needs its environment", violations=wrong)
        if (tls := Tls.from_env(env)) is not None:
            tls.read()
        return Identity(
            role=env["RECMESH_ROLE"],
            index=int(env.get("RECMESH_ROLE_INDEX", "0")),
            job_id=env["RECMESH_JOB_ID"],
            jobmaster=env["RECMESH_JOBMASTER"],
            token=env.get("RECMESH_TOKEN", ""),
            work_dir=Path(env.get("RECMESH_WORK_DIR", ".")),
            in_hand=env.get(VARIABLE, ""),
            tls=tls,
            role_name=env.get(ROLE_NAME, ""),
            host=env.get("RECMESH_NODE") or socket.gethostname(),
        )

    def to_service(self, address: str) -> grpc.Channel:
        """A channel to a service, with the mesh's token, and by TLS where this process has certificates."""
        return sync_channel(address, tls=self.tls, token=self.token or None)

    def to_role(self, address: str) -> grpc.Channel:
        """A channel to another role, in the same way."""
        tls = self.tls.expecting(self.role_name) if self.tls else None
        return sync_channel(address, tls=tls, token=self.token or None)

    @property
    def worker(self) -> str:
        """The name under which it leases and pushes."""
        return f"{self.index}-{self.incarnation[:8]}"


class Heart(threading.Thread):
    """Beats until stopped; an outage of jobmaster is logged once and outlasted."""

    def __init__(
        self,
        runs: Runs,
        *,
        every_s: float,
        beat: Callable[[], Beat],
        heard: Callable[[BeatReply], None],
        hurry: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(name="heart", daemon=True)
        self._runs, self._every_s, self._beat, self._heard, self._hurry = runs, every_s, beat, heard, hurry
        self._end = threading.Event()
        self._due = threading.Event()
        self._away = False

    def run(self) -> None:
        """A beat at once, then each `every_s`; twice a second while `hurry` says that an end is near."""
        while True:
            self._due.clear()
            self.once()
            if self._end.wait(min(LEAST_BEAT_S, self._every_s)):
                return
            self._due.wait((min(self._every_s, 0.5) if self._hurry() else self._every_s) - LEAST_BEAT_S)
            if self._end.is_set():
                return

    def soon(self) -> None:
        """Something has changed that jobmaster should hear of before the next beat is due."""
        self._due.set()

    def once(self) -> None:
        """One beat. What fails, also in what is made of the answer, is tried again with the next."""
        try:
            self._heard(self._runs.heartbeat(self._beat()))
        except MeshError as error:
            if not self._away:
                _log.warning("jobmaster does not answer: %s", error)
            self._away = True
            return
        except Exception:   # a process that no longer beats is ended as silent
            _log.exception("a heartbeat failed")
            return
        self._away = False

    def stop(self) -> None:
        """Ends the thread; the last beat is the caller's."""
        self._end.set()
        self._due.set()
        self.join(timeout=6.0)


def register(runs: Runs, *, gone: threading.Event, address: str = "") -> Assignment:
    """Registers, however long jobmaster is away; NoLongerWanted once `gone` is set."""
    refused = (*DEFINITE, NotFound)
    return patiently(lambda: runs.register(address=address), what="register", gone=gone, definite=refused)


def report_mistake(runs: Runs, message: str) -> None:
    """Tells jobmaster why this process ends; best effort, since the exit code says the kind."""
    gone = threading.Event()
    timer = threading.Timer(3.0, gone.set)
    timer.daemon = True
    timer.start()
    try:
        patiently(lambda: runs.report({}, error=message), what="report", gone=gone)
    except (MeshError, NoLongerWanted) as error:
        _log.warning("jobmaster was not told: %s", error)
    finally:
        timer.cancel()


def say_last(message: str) -> None:
    """The last line on stderr is the reason."""
    print(" ".join(message.split()), file=sys.stderr, flush=True)
