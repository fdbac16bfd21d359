"""The mesh's Session: steps across rollbacks, until the job needs this worker no more."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence

from recmesh.formats.inhand import InHand
from recmesh.runtime.errors import FailedPrecondition, Internal, MeshError
from recmesh.spec.job import TrainingJob
from recmesh.trainer.layout import declaration
from recmesh.trainer.patience import NoLongerWanted, patiently
from recmesh.trainer.ports import BeatReply, RunRecord, Runs
from recmesh.trainer.session import DenseBlock, EmbeddingTable, Step
from recmesh.trainer.stepping import Gradients, LiveStep, NanGuard, StepMistake
from recmesh.trainer.usercode import last_line
from recmesh.trainer.worker.flow import Ready
from recmesh.trainer.worker.life import Life
from recmesh.trainer.worker.meter import Meter
from recmesh.trainer.worker.terms import Declaration

_log = logging.getLogger(__name__)
_POLL_S = 0.1
_RECORD_WAIT_S = 5.0
"""jobmaster answers at once when a generation opens; until then it is asked this often."""
ENDED = frozenset({"finishing", "closed"})
"""Phases of the run record in which nothing is left to train."""


class WorkerSession:
    """See Session. `begin(record)` makes the life of an open generation; it is started here."""

    def __init__(
        self,
        spec: TrainingJob,
        *,
        runs: Runs,
        begin: Callable[[RunRecord, Declaration], Life],
        meter: Meter,
        drain_s: float = 10.0,
        in_hand: InHand | None = None,
    ) -> None:
        self._spec, self._runs, self._begin, self._meter = spec, runs, begin, meter
        self._drain_s = drain_s
        self._in_hand = in_hand or InHand(None)
        self._declaration = Declaration()
        self._declared = False
        self._stop = threading.Event()
        self._nan = NanGuard(spec.training.nan, is_alone=False)
        self._life: Life | None = None
        self._lock = threading.Lock()
        self.finished = False
        """The job has nothing left to train, or asked this worker to stop."""

    def declare(self, tables: Sequence[EmbeddingTable], dense: Sequence[DenseBlock]) -> None:
        """See Session.declare."""
        if self._declared:
            raise FailedPrecondition("the model was declared before; a job trains one model")
        self._declared = True
        self._declaration.set(declaration(self._spec, tables, dense))

    def open(self) -> None:
        """Waits for an open generation and starts its life; may run while the model is still being built."""
        try:
            self._open(newer_than=0)
        except NoLongerWanted:
            _log.info("nothing to do")

    def steps(self) -> Iterator[Step]:
        """See Session.steps."""
        while not self._stop.is_set():
            life = self._life
            if life is None:
                self._stop.wait(_POLL_S / 5)
                continue
            ready = life.next_ready(_POLL_S)
            if life.gone.is_set():
                if not life.stale:
                    raise _internal(life.failure)
                self._renew(life)
                continue
            if ready is None:
                continue
            step = self._step(life, ready)
            if not step.batch.size:
                step.pass_over()
                continue
            piece = ready.read.piece
            self._in_hand.take(piece.line, piece.lo, piece.hi)
            yield step
            if not step.done:
                raise StepMistake("the model's loop went on without pushing or skipping its step")
        self.finished = True

    def close(self) -> None:
        """See Session.close."""
        self._stop.set()
        with self._lock:
            life, self._life = self._life, None
        if life is not None and not life.finish(self._drain_s):
            _log.warning("pushes still in flight after %g s; their batches are trained again", self._drain_s)

    # ---- what the role calls

    def stop(self) -> None:
        """Steps end after the current one. Safe in a signal handler."""
        self._stop.set()

    @property
    def stopping(self) -> bool:
        """Steps are ending."""
        return self._stop.is_set()

    @property
    def gen(self) -> int:
        """Of the current life; 0 before the first."""
        life = self._life
        return 0 if life is None else life.gen

    @property
    def drained(self) -> bool:
        """shardsvc had nothing left for anyone when last asked."""
        life = self._life
        return life is not None and life.drained.is_set()

    def heard(self, reply: BeatReply) -> None:
        """Follows a heartbeat's answer."""
        if reply.directive != "continue" or reply.phase in ENDED:
            self.stop()
        life = self._life
        if life is not None and reply.gen > life.gen:
            life.abandon()
        elif life is not None and reply.gen == life.gen:
            life.heard(reply.map_version)

    # ---- inside

    def _open(self, *, newer_than: int) -> None:
        while True:
            record = patiently(
                lambda: self._runs.record(newer_than_gen=newer_than, wait_s=_RECORD_WAIT_S),
                what="run record",
                gone=self._stop,
            )
            if self._stop.is_set():
                return
            if record.phase in ENDED:
                self.stop()
                return
            if record.phase == "open" and record.gen > newer_than:
                break
            self._stop.wait(_POLL_S)
            if self._stop.is_set():
                return
        life = self._begin(record, self._declaration)
        with self._lock:
            if self._stop.is_set():
                return
            self._life = life
        life.start()
        servers = len(record.members)
        _log.info("generation %d: %d servers, map version %d", record.gen, servers, record.map_version)

    def _renew(self, life: Life) -> None:
        life.close()
        try:
            self._open(newer_than=life.gen)
        except NoLongerWanted:
            _log.info("stopped while waiting for the next generation")

    def _step(self, life: Life, ready: Ready) -> LiveStep:
        def finish(grads: Gradients) -> None:
            self._in_hand.put_down()
            self._meter.times(compute_s=step.compute_s)
            if not life.gone.is_set():
                life.push(ready, grads)

        declared = self._declaration.get(self._stop)
        step = LiveStep(
            prepared=ready.prepared,
            declared=declared,
            layout=self._declaration.layout,
            arenas=ready.arenas,
            rows=ready.rows,
            flat=ready.dense,
            dense=self._declaration.layout.views(ready.dense),
            finish=finish,
            listener=self._meter,
            nan=self._nan,
            clip_norm=self._spec.training.clip_norm,
        )
        return step


def _internal(failure: BaseException | None) -> BaseException:
    """What ended the worker's threads, as it reaches the model's loop: the user's code is not to blame for it."""
    if failure is None:
        return Internal("the worker's threads have ended")
    if isinstance(failure, MeshError):
        return failure
    internal = Internal(f"a thread of the worker failed: {last_line(failure)}")
    internal.__cause__ = failure
    return internal
