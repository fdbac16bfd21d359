"""From an environment to a running role: connections, registration, the user's code, and the way out."""

import logging
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

from recmesh.runtime.errors import CallerError, MeshError
from recmesh.runtime.rpc.detour import PROXY, detour
from recmesh.spec.job import TrainingJob
from recmesh.trainer.breaking import broken_rule
from recmesh.trainer.exits import BUG, DONE, MISTAKE, RETRY, exit_code_of
from recmesh.trainer.lean import keep_pandas_out
from recmesh.trainer.patience import NoLongerWanted
from recmesh.trainer.ports import Assignment, Member, Runs
from recmesh.trainer.role import Identity, register, report_mistake, say_last
from recmesh.trainer.session import BuildOnly
from recmesh.trainer.usercode import last_line
from recmesh.trainer.wire import RemoteRuns, RemoteServer, RemoteShards

_log = logging.getLogger(__name__)


@dataclass
class Context:
    """What a role runs with."""

    identity: Identity
    assignment: Assignment
    spec: TrainingJob
    runs: Runs
    stopped: threading.Event
    """Set by SIGTERM and SIGINT."""
    on_stop: list[Callable[[], None]]
    """Called by the signal handler: quick; they do no more than set an event."""
    broken: str = ""
    """The rule that a chaos run switches off."""
    proxy: str = ""
    """Through which a chaos run sends the calls to parameter servers."""
    commanded: bool = False
    """jobmaster said itself that this process is to go."""
    in_user_code: bool = False
    stepped: bool = False

    def server(self, member: Member) -> RemoteServer:
        """A parameter server, over a connection that ends with its `close`."""
        if self.proxy:
            channel: Any = detour(self.proxy, member.address, token=self.identity.token or None)
        else:
            channel = self.identity.to_role(member.address)
        return RemoteServer(channel, job_id=self.identity.job_id)

    def shards(self) -> RemoteShards:
        """shardsvc."""
        return RemoteShards(
            self.identity.to_service(self.assignment.shardsvc), job_id=self.identity.job_id, worker=self.identity.worker
        )


def run(env: Mapping[str, str]) -> int:
    """Runs the role to its end and returns the exit code."""
    keep_pandas_out()
    _log_to_stderr(env.get("RECMESH_LOG_LEVEL", "INFO"))
    try:
        identity = Identity.from_env(env)
        broken = broken_rule(env)
    except CallerError as error:
        say_last(str(error))
        return MISTAKE
    stopped = threading.Event()
    on_stop: list[Callable[[], None]] = []

    def handle(number: int, _: FrameType | None) -> None:
        _log.info("%s: draining", signal.Signals(number).name)
        stopped.set()
        for action in on_stop:
            action()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)

    runs = RemoteRuns(
        identity.to_service(identity.jobmaster),
        job_id=identity.job_id,
        role=identity.role,
        index=identity.index,
        incarnation=identity.incarnation,
        host=identity.host,
        pid=identity.pid,
    )
    context: Context | None = None
    try:
        assignment = register(runs, gone=stopped)
        spec = TrainingJob.model_validate_json(assignment.spec_json)
        proxy = env.get(PROXY, "") if identity.role == "worker" else ""
        context = Context(identity, assignment, spec, runs, stopped, on_stop, broken, proxy)
        _role(identity.role)(context)
    except (NoLongerWanted, BuildOnly):
        return _done(identity, stopped, context)
    except BaseException as error:  # every way out has a code and a line
        return _failed(error, context, runs)
    return _done(identity, stopped, context)


def _done(identity: Identity, stopped: threading.Event, context: Context | None) -> int:
    """A worker or executor that a signal ended has left work to others; nobody else's end is worth another try."""
    if identity.role == "data":
        return RETRY if stopped.is_set() and not (context is not None and context.commanded) else DONE
    return RETRY if identity.role == "worker" and stopped.is_set() else DONE


def _role(name: str) -> Callable[[Context], None]:
    if name == "worker":
        from recmesh.trainer.worker.role import run as run_worker

        return run_worker
    if name == "data":
        from recmesh.trainer.executor.role import run as run_executor

        return run_executor
    if name == "evaluator":
        from recmesh.trainer.evaluator.role import run as run_evaluator

        return run_evaluator
    from recmesh.trainer.finisher.role import run as run_finisher

    return run_finisher


def _failed(error: BaseException, context: Context | None, runs: Runs) -> int:
    if isinstance(error, SystemExit) and error.code in (0, None):
        return DONE
    in_user_code = context is not None and context.in_user_code
    code = exit_code_of(error, in_user_code=in_user_code, stepped=context is not None and context.stepped)
    message = " ".join(str(error).split()) if isinstance(error, MeshError) else last_line(error)
    _log.error("the role ends with code %d", code, exc_info=error)
    if code == MISTAKE or code == BUG:
        report_mistake(runs, message)
    say_last(message)
    return code


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(
        stream=sys.stderr, level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for name in ("grpc", "numba", "fsspec", "opentelemetry"):
        logging.getLogger(name).setLevel(logging.WARNING)
