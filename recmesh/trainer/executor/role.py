"""The process of a data executor: serve rows, say where, beat, leave when told.

Environment: as of every role, and RECMESH_DATA_ADDRESS, where to listen (default: a free port of loopback).
"""

import logging
import math
import os
import resource
import threading
from collections.abc import Callable
from time import monotonic

from recmesh.data import TaskReader, TaskRecord
from recmesh.data.decoded import Decoded
from recmesh.runtime.errors import FailedPrecondition
from recmesh.runtime.rpc import sync_server
from recmesh.spec.fingerprint import job_fingerprint
from recmesh.spec.job import TrainingJob
from recmesh.trainer.executor.rebalance import Peer, Thresholds
from recmesh.trainer.executor.rpc import LANES, MOST_WAITING, SERVICE_NAME, DataExecutorServicer, add_to_server
from recmesh.trainer.executor.serving import Executor
from recmesh.trainer.executor.shelf import Shelf
from recmesh.trainer.memory import resident_bytes
from recmesh.trainer.ports import Beat, BeatReply, DataExecutor, ExecutorAddress
from recmesh.trainer.role import Heart, register
from recmesh.trainer.start import Context
from recmesh.trainer.usercode import fetch
from recmesh.trainer.wire import RemoteExecutor

_log = logging.getLogger(__name__)
_RAW_BYTES = 32 << 20
"""Of row groups and the like, which a reader keeps for the next task of the same file."""
DRAIN_S = 3.0
"""After a signal rows are served so long: until workers have heard of it and ask others."""


def run(context: Context) -> None:
    """Serves until this process shall stop; errors pass to the caller."""
    spec, identity = context.spec, context.identity
    if spec.data is None:
        raise FailedPrecondition("the assignment holds no resolved dataset")
    fetch(spec.model, storage_uri=context.assignment.storage_uri, work_dir=identity.work_dir)
    fingerprint = job_fingerprint(spec, job_id=identity.job_id)
    connections = Connections(lambda address: RemoteExecutor(
        identity.to_role(address), fingerprint=fingerprint))
    executor = executor_of(spec, reach=connections.reach)
    listener = sync_server(
        "data", os.environ.get("RECMESH_DATA_ADDRESS", "127.0.0.1:0"),
        [add_to_server(DataExecutorServicer(executor, fingerprint=fingerprint))],
        tls=identity.tls, token=identity.token or None,
        service_names=[SERVICE_NAME], max_workers=MOST_WAITING, lanes=LANES,
    )
    stopped, at_once = context.stopped, threading.Event()
    try:
        register(context.runs, gone=stopped, address=listener.address)
        executor.start(listener.address)

        def use(executors: tuple[ExecutorAddress, ...]) -> None:
            connections.keep({each.address for each in executors})
            executor.use_peers(peers_of(executors))

        def heard(reply: BeatReply) -> None:
            use(reply.executors)
            if reply.directive != "continue":
                _log.info("jobmaster says: %s", reply.directive)
                context.commanded = True
                if reply.directive == "exit":
                    at_once.set()
                stopped.set()

        def beat() -> Beat:
            usage = resource.getrusage(resource.RUSAGE_SELF)
            return Beat(
                gen=0, memory_bytes=resident_bytes(), cpu_s=usage.ru_utime + usage.ru_stime,
                draining=stopped.is_set(), serving=executor.serving(),
            )

        heart = Heart(context.runs, every_s=context.assignment.heartbeat_s, beat=beat, heard=heard,
                      hurry=stopped.is_set)
        executor.on_room = heart.soon
        heart.start()
        _log.info("data executor %d serves at %s", identity.index, listener.address)
        stopped.wait()
        executor.leave()
        heart.soon()
        at_once.wait(DRAIN_S)
        heart.stop()
    finally:
        executor.stop()
        listener.stop(DRAIN_S)
        connections.close()


Decode = Callable[[TaskRecord], Decoded]


def executor_of(
    spec: TrainingJob, *, reach: Callable[[str], DataExecutor],
    around: Callable[[Decode], Decode] = lambda decode: decode,
) -> Executor:
    """As the job says: a decoder for each core that it may use. `around`: what benchmarks put around each."""
    assert spec.data is not None
    role, data = spec.roles.data, spec.data
    readers = [
        TaskReader(data, cache_bytes=_RAW_BYTES, code=spec.model.code) for _ in range(math.ceil(role.cpu or 1.0))
    ]
    is_rebalanced = (data.mode or role.mode) == "rebalance"
    thresholds = Thresholds(role.refuse_above, role.accept_below) if is_rebalanced else None
    shelf = Shelf([view.source.priority for view in data.views()], role.buffer)
    decoders = [around(reader.decode) for reader in readers]
    return Executor(shelf, decoders, thresholds=thresholds, reach=reach, clock=monotonic)


def peers_of(executors: tuple[ExecutorAddress, ...]) -> dict[str, Peer]:
    """By address."""
    return {each.address: Peer(each.accepting, each.queued) for each in executors}


class Connections:
    """To other executors, one each, kept."""

    def __init__(self, connect: Callable[[str], DataExecutor]) -> None:
        self._connect, self._known, self._lock = connect, dict[str, DataExecutor](), threading.Lock()

    def reach(self, address: str) -> DataExecutor:
        """The one at this address."""
        with self._lock:
            if address not in self._known:
                self._known[address] = self._connect(address)
            return self._known[address]

    def keep(self, addresses: set[str]) -> None:
        """Closes those to others."""
        with self._lock:
            gone = [self._known.pop(address) for address in set(self._known) - addresses]
        for each in gone:
            each.close()

    def close(self) -> None:
        """Calls under way are cancelled."""
        self.keep(set())
