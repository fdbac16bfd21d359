"""One parameter server: the rules of `ledger` over the rows of `model`, for many threads. No gRPC here.

Pushes and pulls share the latch; what changes structure holds it alone. Commands of jobmaster are serialised
by `_structure`, which is taken before the latch.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from recmesh.formats import Ledger
from recmesh.formats.intervals import Triple
from recmesh.formats.snapshot import Part as SnapshotPart
from recmesh.runtime.errors import FailedPrecondition, Unavailable
from recmesh.runtime.gates import gate
from recmesh.runtime.shared_memory import PART_PREFIX
from recmesh.trainer.ps.alone import keep_nothing, reach_nobody, stored_parts, tell_nobody
from recmesh.trainer.ps.assembly import Assembly
from recmesh.trainer.ps.copying import Copy, Deliver, GiveUp, Order
from recmesh.trainer.ps.latch import Latch
from recmesh.trainer.ps.ledger import Books, Claim, Cut, check_batch
from recmesh.trainer.ps.messages import (
    Declaration,
    DenseValues,
    JoinOrder,
    LedgersResult,
    MarkResult,
    Part,
    PullResult,
    PushResult,
    PushStatus,
    RestoreOrder,
    RestoreResult,
    Stats,
    TakeoverResult,
)
from recmesh.trainer.ps.model import Model
from recmesh.trainer.ps.moves import FreezeResult, MoveOrder, MoveProgress, Moves, Reach
from recmesh.trainer.ps.precedence import Precedence
from recmesh.trainer.ps.refusals import WrongMap
from recmesh.trainer.ps.restoring import load_parts
from recmesh.trainer.ps.synchronous import SettledResult, Synchronous

FAIL_STOP_EXIT_CODE = 70
PIECES_LIMIT_BYTES = 1 << 30
PIECES_EXPIRY_S = 60.0
_BUSY_S = 5.0

Sources = Callable[[RestoreOrder], Sequence[SnapshotPart]]


def fail_stop(error: BaseException) -> NoReturn:
    """End the process at once: rows are half changed, and nobody may see or save them (PROTOCOL H26)."""
    import traceback

    traceback.print_exception(error)
    print(f"a parameter server failed inside apply: {error!r}", file=sys.stderr, flush=True)
    os._exit(FAIL_STOP_EXIT_CODE)


class ParameterServer:
    """Thread-safe. Every method raises a `refusals.Refusal` when the state forbids it, without effect."""

    books_type: type[Books] = Books

    def __init__(
        self, incarnation: str, *, shm_dir: Path = Path("/dev/shm"), memory_bytes: int | None = None,
        sources: Sources = stored_parts, deliver: Deliver = keep_nothing, give_up: GiveUp = tell_nobody,
        reach: Reach = reach_nobody,
        fail: Callable[[BaseException], NoReturn] = fail_stop,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.books = self.books_type(incarnation)
        self.model = Model(memory_bytes=memory_bytes)
        self.latch, self._structure = Latch(), threading.Lock()
        self.precedence = Precedence()
        self.moves = Moves(self, reach=reach)
        self._ledger = threading.Condition()
        self.steps = Synchronous(self, ledger=self._ledger)
        self._shm_dir, self._memory_bytes = shm_dir, memory_bytes
        self._sources, self._deliver, self._give_up, self._fail = sources, deliver, give_up, fail
        self._pieces: Assembly[Part] = Assembly(
            limit_bytes=PIECES_LIMIT_BYTES, expiry_s=PIECES_EXPIRY_S, monotonic=monotonic)
        self._job_id, self._ps = "", 0
        self._restored: tuple[RestoreOrder, RestoreResult] | None = None
        self._copy: Copy | None = None
        self._marked: tuple[int, MarkResult] | None = None
        self._counts = {"pulls": 0, "pushes": 0, "duplicates": 0}

    # ---- workers

    def declare(self, gen: int, declaration: Declaration, values: Sequence[DenseValues] = ()) -> bool:
        """Tables, blocks and initial values of the chunks owned here; True when they were declared before."""
        with self.latch.exclusive():
            self.books.check_generation(gen)
            self._finish_copy_before_change()
            return self.model.declare(declaration, values, owned=self.books.owned)

    def prepare(self, gen: int, content: Declaration) -> None:
        """See moves.home: slots are about to come, from a server where the model is declared."""
        self.declare(gen, content)

    def pull(
        self, gen: int, map_version: int, tables: Sequence[tuple[int, NDArray[np.int64]]] = (), *,
        dense: bool = False, dense_since: int = 0, absent_as_zero: bool = False,
    ) -> PullResult:
        """Values of ids, and of dense chunks changed after `dense_since`. Changes nothing."""
        started = time.perf_counter()
        with self.precedence.training(), self.latch.shared():
            self.books.check_generation(gen)
            self.books.check_map(map_version)
            if not self.model.check_pull(tables, owned=self.books.owned.view(np.uint8)):
                raise WrongMap(self.books.since, asked=map_version)
            group_step = self.books.step                           # before the values: these are no older
            rows = self.model.pull(tables, absent_as_zero=absent_as_zero)
            chunks: Sequence[DenseValues] = ()
            step = self.model.store.clock
            if dense:
                chunks, step = self.model.pull_dense(since=dense_since, owned=self.books.owned)
        self._count("pulls")
        return PullResult(rows, chunks, step, group_step, time.perf_counter() - started)

    def push(self, part: Part) -> PushResult:
        """Apply the part once: an answer of APPLIED means that it is, by this message or another.

        A part of a synchronous step is KEPT, which is no ack, until the step is whole.
        """
        started = time.perf_counter()
        check_batch(part.batch)
        with self.precedence.training():
            return self._push(part, started=started)

    def _push(self, part: Part, *, started: float) -> PushResult:
        if part.chunks > 1:
            whole = self._assemble(part)
            if whole is None:
                return PushResult(PushStatus.CHUNK_KEPT)
            part = whole
        with self.latch.shared():
            self.books.check_generation(part.gen)
            self.books.check_map(part.map_version)
            self._check_split(part)
            gate("ps.claim", part.batch)
            applied, before = (True, self._push_batch(part)) if part.step is None else self.steps.push(part, part.step)
        if applied:
            gate("ps.ack", part.batch)
        duplicate = bool(self.books.groups) and before
        self._count("duplicates" if duplicate else "pushes")
        status = PushStatus.APPLIED if applied else PushStatus.KEPT
        return PushResult(status, duplicate, time.perf_counter() - started)

    def settled(
        self, gen: int, map_version: int, pieces: Sequence[Triple], *, wait_s: float = 0.0, others: bool = False
    ) -> SettledResult:
        """What has become of positions of synchronous steps; waits a while for them to be applied."""
        return self.steps.settled(gen, map_version, tuple(pieces), wait_s=wait_s, others=others)

    def ledgers(self, gen: int, within: Sequence[Triple] = ()) -> LedgersResult:
        """What is applied of these positions; of all when none are given."""
        with self.latch.shared(), self._ledger:
            self.books.check_generation(gen)
            by_all, by_any = self.books.ledgers(within)
            return LedgersResult(by_all, by_any, self.books.epochs.largest)

    def apply(self, claimed: Sequence[tuple[Claim, Part]]) -> None:
        """See synchronous.Home."""
        gate("ps.apply", [claim.batch for claim, _ in claimed])
        try:
            for claim, part in claimed:
                for group, step in zip(claim.groups, claim.steps, strict=True):
                    self.model.apply(part, slots=group.slots, whole=claim.whole, step=step)
            with self._ledger:
                for claim, _ in claimed:
                    self.books.commit(claim)
                self._ledger.notify_all()
        except BaseException as error:                             # rows and ledger may differ now
            self._fail(error)

    # ---- jobmaster

    def restore(self, order: RestoreOrder) -> RestoreResult:
        """Begin a generation: drop everything, load the owned slots. The last order, repeated, is answered.

        DataLoss when the snapshot is damaged; the server then has no generation, and may get another order.
        """
        with self._command(order.term):
            if self._restored and self._restored[0] == order and self.books.gen == order.gen:
                return self._restored[1]
            self.books.check_restore(order.gen, incarnation=order.incarnation)
            started = time.perf_counter()
            self._stop_copy()
            self.moves.stop()
            with self.latch.exclusive():
                self.books.end(ordered=order.gen)
                self._pieces.clear()
                self.steps.clear()
                self._marked = None
                self.model = Model(memory_bytes=self._memory_bytes)   # before loading: never both in memory
            owned = order.slot_map.mask(order.ps)
            model, cuts = Model(memory_bytes=self._memory_bytes), [Cut(owned, Ledger(), 0)]
            if order.snapshot or order.parts:
                cuts = load_parts(model, self._sources(order), owned=owned, fresh_ledger=order.fresh_ledger)
            gate("ps.restore", f"snapshot {order.snapshot}, {model.store.rows} rows")
            with self.latch.exclusive():
                self.model = model
                model.store.share = float(owned.mean())
                self._job_id, self._ps = order.job_id, order.ps
                self.books.begin(gen=order.gen, since=order.slot_map.version, owned=owned,
                                 cuts=[cut for cut in cuts if cut.slots.any()], voids=order.voids)
                result = RestoreResult(model.store.rows, time.perf_counter() - started)
                self._restored = (order, result)
            return result

    def join(self, order: JoinOrder) -> None:
        """Take part in an open generation, without slots. The same order, repeated, has no effect.

        FailedPrecondition when the process was part of another one, whose rows, steps and marks it may still have.
        """
        with self._command(order.term):
            if self.books.gen == order.gen and order.incarnation == self.books.incarnation:
                return
            self.books.check_restore(order.gen, incarnation=order.incarnation)
            if past := self.books.gen or self.books.ordered:
                raise FailedPrecondition(f"this process was part of generation {past}", reason="HAS_A_PAST")
            with self.latch.exclusive():
                self.books.enlist(gen=order.gen, since=order.map_version, voids=order.voids)
                self._job_id, self._ps = order.job_id, order.ps

    def takeover(self, gen: int, term: int) -> TakeoverResult:
        """A new jobmaster: earlier terms are refused from now on."""
        with self._command(term):
            books, moves = self.books, self.moves
            return TakeoverResult(books.gen, books.term, books.since, books.owned.copy(), self.marking,
                                  moves.sending, moves.frozen)

    def migrate(self, order: MoveOrder, *, term: int) -> MoveProgress:
        """Copy slots to another server and keep the copy fresh; repeated, how far it is."""
        with self._command(term):
            return self.moves.migrate(order, source=self._ps)

    def freeze(self, gen: int, term: int, move: int, *, map_version: int) -> FreezeResult:
        """The slots leave for good; `installed` when the target has them."""
        with self._command(term):
            return self.moves.freeze(gen, move, map_version=map_version)

    def resume(self, gen: int, term: int, move: int, *, map_version: int) -> bool:
        """The target has promised never to install. Whether the slots had left."""
        with self._command(term):
            return self.moves.resume(gen, move, map_version=map_version)

    def free(self, gen: int, term: int, move: int) -> None:
        """The run record names the target: the rows here are nobody's."""
        with self._command(term):
            self.moves.free(gen, move)

    def abort_install(self, gen: int, term: int, move: int) -> bool:
        """Whether slots of the move are installed here; if not, they never will be."""
        with self._command(term):
            return self.moves.receiver.abort(gen, move)

    def mark(self, gen: int, term: int, snapshot: int, *, base: int = 0) -> MarkResult:
        """Cut a snapshot; its copy goes on in the background. Repeating the last mark repeats its answer.

        It builds on `base`, a committed snapshot of this generation, where this server can; the answer says so.
        """
        with self._command(term):
            self.books.check_generation(gen)
            if self._marked and self._marked[0] == snapshot:
                return self._marked[1]
            if self._marked and snapshot < self._marked[0]:
                raise FailedPrecondition(f"snapshot {self._marked[0]} was cut after {snapshot}",
                                         reason="STALE_SNAPSHOT")
            self._stop_copy()
            self.model.store.make_ready()
            copy = Copy(self.model, snapshot=snapshot, path=self._part_path(snapshot), deliver=self._deliver,
                        give_up=self._give_up)
            copy.start()
            try:
                with self.latch.exclusive() as held:
                    cuts, since = self.books.cut(), self.books.since
                    changes = self.model.baselines.changes(base, since=since)
                    self.model.baselines.cut(snapshot, cuts, since=since)
                    self.model.store.mark()
                    copy.begin(Order(self._job_id, gen, snapshot, self._ps, since, cuts, changes))
                    self._copy = copy          # before a declaration may look whether one is under way
                    latch_ms = held.milliseconds
            except BaseException:
                copy.cancel()
                raise
            result = MarkResult(self.books.owned.copy(), cuts, latch_ms, self.model.store.rows,
                                self.model.store.memory_bytes, changes.base)
            self._marked = (snapshot, result)
            gate("ps.mark", f"snapshot {snapshot}")
            return result

    def abort_mark(self, gen: int, term: int, snapshot: int) -> None:
        """Forget a snapshot that will not be committed."""
        with self._command(term):
            self.books.check_generation(gen)
            if self._copy and self._copy.snapshot == snapshot:
                self._stop_copy()

    def void(self, gen: int, term: int, batches: Sequence[Triple]) -> list[Triple]:
        """Quarantine: no push of these positions has an effect from now on; returns those already applied."""
        with self._command(term):
            with self.latch.exclusive():
                self.books.check_generation(gen)
                return self.books.void(batches)

    def stats(self) -> Stats:
        """Sizes and counters."""
        with self.latch.shared(), self._ledger:
            store = self.model.store
            return Stats(self.books.gen, self.books.step, store.rows, store.memory_bytes, int(self.books.owned.sum()),
                         store.busy_s, **self._counts, tables=self.model.sizes(), demand=self.model.demand.read())

    @property
    def marking(self) -> int:
        """The snapshot that is being copied or delivered; 0: none."""
        return self._copy.snapshot if self._copy and self._copy.is_alive() else 0

    def close(self) -> None:
        """Give up what runs in the background."""
        self._stop_copy()
        self.moves.stop()

    # ---- inside

    def _check_split(self, part: Part) -> None:
        """A split must cover exactly the slots owned here."""
        if not self.model.check_part(part, owned=self.books.owned.view(np.uint8)):
            raise WrongMap(self.books.since, asked=part.map_version)

    def _push_batch(self, part: Part) -> bool:
        """Returns once every group has applied it; whether all had, or were about to, before this message."""
        with self.model.reserved(part):                            # from here on nothing may fail
            with self._ledger:
                self.books.check_epoch(part.batch, part.epoch)
                claim = self.books.claim(part.batch, epoch=part.epoch, last_step=part.last_step)
            self.apply([(claim, part)])
        with self._ledger:                                         # an ack means applied, by whomever
            while not self.books.applied(part.batch):
                self._ledger.wait()
        return not claim.groups

    def _assemble(self, part: Part) -> Part | None:
        """The logical part once its last piece is here. Pieces of an applied batch make an empty one."""
        with self.latch.shared(), self._ledger:
            self.books.check_generation(part.gen)
            self.books.check_map(part.map_version)
            if self.books.groups and self.books.applied(part.batch):
                return replace(part, tables=(), dense=(), chunk=0, chunks=1)
        key = (part.worker, part.gen, part.map_version, part.batch, part.chunks)
        pieces = self._pieces.add(key, part, number=part.chunk, count=part.chunks, size_bytes=part.size_bytes)
        if pieces is None:
            return None
        return replace(part, chunk=0, chunks=1, epoch=max(piece.epoch for piece in pieces),
                       pulled_step=min(piece.pulled_step for piece in pieces),
                       tables=[grads for piece in pieces for grads in piece.tables],
                       dense=[chunk for piece in pieces for chunk in piece.dense])

    @contextmanager
    def _command(self, term: int) -> Iterator[None]:
        """One command at a time, of the newest jobmaster: an earlier one's is StaleTerm."""
        if not self._structure.acquire(timeout=_BUSY_S):
            raise Unavailable("another command is under way", reason="BUSY")
        try:
            self.books.accept_term(term)
            yield
        finally:
            self._structure.release()

    def _stop_copy(self) -> None:
        if self._copy:
            self._copy.cancel()
            self._copy = None

    def _finish_copy_before_change(self) -> None:
        """A first declaration after a restore may replace tables; a copy under way would lose its source."""
        if not self.model.declared and self._copy and self._copy.is_copying:
            raise Unavailable("a snapshot is being copied", reason="BUSY")

    def _part_path(self, snapshot: int) -> Path:
        name = f"{PART_PREFIX}{self._job_id}.{self._ps}.{self.books.incarnation[:8]}.{snapshot}"
        return self._shm_dir / name

    def _count(self, what: str) -> None:
        with self._ledger:
            self._counts[what] += 1
