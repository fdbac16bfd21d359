"""The process of a parameter server: serve, say where, beat, leave when told.

Environment: RECMESH_JOB_ID, RECMESH_JOBMASTER, RECMESH_ROLE_INDEX, RECMESH_TOKEN, RECMESH_TLS_*, RECMESH_SHM_DIR,
RECMESH_PS_ADDRESS (where to listen; default a free port of loopback), RECMESH_NOTICE_S (how long it stays after a
signal while its slots move away; default 25).
"""

import logging
import resource
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from recmesh.runtime.errors import MeshError
from recmesh.runtime.rpc import sync_server
from recmesh.runtime.shared_memory import remove_abandoned
from recmesh.trainer.breaking import broken_rule
from recmesh.trainer.exits import BUG, DONE, MISTAKE, RETRY
from recmesh.trainer.lean import keep_pandas_out
from recmesh.trainer.memory import resident_bytes
from recmesh.trainer.patience import NoLongerWanted
from recmesh.trainer.ports import Beat, BeatReply, RunRecord
from recmesh.trainer.ps.moves import Target
from recmesh.trainer.ps.notice import PATIENCE_S, Notice
from recmesh.trainer.ps.precedence import AT_ONCE
from recmesh.trainer.ps.rpc import (
    LANES,
    SERVICE_NAME,
    CheckpointClient,
    ParameterServerServicer,
    RemoteTarget,
    add_to_server,
)
from recmesh.trainer.ps.server import ParameterServer
from recmesh.trainer.ps.without import server_without
from recmesh.trainer.role import Heart, Identity, register, say_last
from recmesh.trainer.wire import RemoteRuns

log = logging.getLogger(__name__)

_RPC_THREADS = AT_ONCE
"""That serve workers: whatever a call does before it takes its turn it does in one of these."""
_SWITCH_S = 0.0005
"""A push that waits for the interpreter while a snapshot is written gets it after so long; the default is 5 ms."""
_DRAIN_S = 5.0
"""Pushes under way end within it; a push is milliseconds."""


def main(env: Mapping[str, str]) -> int:
    """Run the role to its end; the exit code as `recmesh.trainer.exits` defines them."""
    keep_pandas_out()
    try:
        identity = Identity.from_env(env)
    except MeshError as error:
        say_last(str(error))
        return MISTAKE
    stopped, notice = threading.Event(), Notice(patience_s=float(env.get("RECMESH_NOTICE_S") or PATIENCE_S))
    notice.listen()
    sys.setswitchinterval(_SWITCH_S)
    try:
        return serve(identity, env, stopped, notice)
    except NoLongerWanted:
        return DONE
    except MeshError as error:
        log.exception("the parameter server ends")
        say_last(str(error))
        return RETRY
    except Exception as error:
        log.exception("the parameter server ends")
        say_last(f"{type(error).__name__}: {error}")
        return BUG


def serve(identity: Identity, env: Mapping[str, str], stopped: threading.Event, notice: Notice) -> int:
    """Serve until `stopped`, until jobmaster says so, or until the run record names another incarnation."""
    channels: dict[str, object] = {}
    lock = threading.Lock()

    def connect(address: str) -> object:
        with lock:
            if address not in channels:
                channels[address] = identity.to_service(address)
            return channels[address]

    runs = RemoteRuns(
        connect(identity.jobmaster), job_id=identity.job_id, role=identity.role, index=identity.index,
        incarnation=identity.incarnation, host=identity.host, pid=identity.pid)
    shm_dir = Path(env.get("RECMESH_SHM_DIR") or "/dev/shm")
    remove_abandoned(shm_dir)
    address = env.get("RECMESH_PS_ADDRESS", "127.0.0.1:0")
    checkpoints = CheckpointClient(connect, address=env.get("RECMESH_CKPTCACHE", ""))

    def reach(address: str) -> Target:
        return RemoteTarget(identity.to_role(address), job_id=identity.job_id)

    server_type = server_without(broken_rule(env))
    server = server_type(identity.incarnation, shm_dir=shm_dir, sources=checkpoints.sources,
                         deliver=checkpoints.deliver, give_up=checkpoints.give_up, reach=reach)
    servicer = ParameterServerServicer(server, job_id=identity.job_id)
    listener = sync_server("ps", address, [add_to_server(servicer)], tls=identity.tls, token=identity.token or None,
                           service_names=[SERVICE_NAME], max_workers=_RPC_THREADS, lanes=LANES)
    try:
        assignment = register(runs, gone=notice.event, address=listener.address)
        checkpoints.use(assignment.ckptcache)
        hearing = Hearing(Membership(identity.index, identity.incarnation), runs.record, stopped)
        heart = Heart(runs, every_s=assignment.heartbeat_s, beat=lambda: beat_of(server, notice.given),
                      heard=hearing.heard, hurry=lambda: notice.given)
        heart.start()
        log.info("parameter server %d serves at %s", identity.index, listener.address)
        notice.wait(stopped, tell=lambda: hearing.heard(runs.heartbeat(beat_of(server, True))))
        heart.stop()
        return DONE
    finally:
        listener.stop(_DRAIN_S)
        server.close()


class Membership:
    """Whether the run record still means this process."""

    def __init__(self, index: int, incarnation: str) -> None:
        self._index, self._incarnation = index, incarnation
        self._member_of = 0

    def ended(self, record: RunRecord) -> bool:
        """True once a generation lives that names another incarnation for the same PS, or none.

        One that has left its generation still tells workers with an old map so, until jobmaster says that it may go.
        """
        named = {member.ps: member.incarnation for member in record.members}.get(self._index)
        if named == self._incarnation:
            self._member_of = record.gen
            return False
        has_left = named is None and record.gen == self._member_of
        return record.phase == "closed" or (self._member_of > 0 and not has_left)


class Hearing:
    """What a heartbeat's answer means for this process. It reads the run record only when that has changed."""

    def __init__(
        self, member: Membership, record: Callable[[], RunRecord], stopped: threading.Event
    ) -> None:
        self._member, self._record, self._stopped = member, record, stopped
        self._seen: tuple[int, int, str] | None = None

    def heard(self, reply: BeatReply) -> None:
        """Sets `stopped` when jobmaster says so, or when the record means another process."""
        if reply.directive != "continue":
            log.info("jobmaster says: %s", reply.directive)
            self._stopped.set()
            return
        now = (reply.gen, reply.map_version, reply.phase)
        if now == self._seen:
            return
        ended = self._member.ended(self._record())
        self._seen = now
        if ended:
            log.info("the run record names another incarnation")
            self._stopped.set()


def beat_of(server: ParameterServer, draining: bool) -> Beat:
    """What jobmaster hears: rows, memory, time in kernels."""
    stats = server.stats()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return Beat(gen=stats.gen, rows=stats.rows, memory_bytes=resident_bytes(), busy_s=stats.busy_s,
                cpu_s=usage.ru_utime + usage.ru_stime, draining=draining)
