"""One generation of a worker: the threads and state that a rollback throws away as a whole.

    leaser ──batches──► reader ──read──► puller ──ready──► the model's loop ──► pushers ──► all servers
       ▲                  ▲ re-cut batches, first                                  │
       └── renewer: progress of leases ◄──────────────── applied ──────────────────┘

Every queue is bounded. At most `in_flight` batches are between the start of their pull and their last ack; in
synchronous mode, their last push: see `turns` for the order of batches there, and `settling` for acks.
"""

import contextlib
import logging
import queue
import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, TypeVar, cast

from recmesh.data.records import kind_borders
from recmesh.runtime.errors import MeshError
from recmesh.runtime.gates import gate
from recmesh.trainer.layout import Placement, arenas, prepare
from recmesh.trainer.memory import aligned
from recmesh.trainer.patience import NoLongerWanted, patiently
from recmesh.trainer.ports import (
    AppliedSets,
    Declared,
    Lease,
    LeaseProgress,
    ParameterServer,
    Piece,
    PushTerms,
    RenewReply,
    RunRecord,
    Runs,
    Shards,
)
from recmesh.trainer.stepping import Gradients
from recmesh.trainer.worker.cutting import cut_at, missing_batches
from recmesh.trainer.worker.fleet import Connect, StaleGeneration, WrongMap
from recmesh.trainer.worker.flow import Lane, Read, Ready, offer
from recmesh.trainer.worker.leases import LeaseBook
from recmesh.trainer.worker.meter import Meter
from recmesh.trainer.worker.pending import Pending
from recmesh.trainer.worker.pulling import fill, pull_from
from recmesh.trainer.worker.push import Applied, NotOurs, Overlap, TooOld, Waits, push_everywhere
from recmesh.trainer.worker.reading import Reader
from recmesh.trainer.worker.settling import Settling
from recmesh.trainer.worker.terms import Declaration, Terms
from recmesh.trainer.worker.turns import Kept, Turns

if TYPE_CHECKING:
    from recmesh.data import TaskRecord

_log = logging.getLogger(__name__)
_POLL_S = 0.1
CLOSE_S = 5.0
"""All threads together have so long to end."""
T = TypeVar("T")
_DRAIN_STEP_S = 2.0
"""A worker that leaves lets others finish the step that it had a part in, but not for long: it may be the last."""


class Life:
    """Threads of one generation. `gone` ends them; `failure` says why, when it was not asked for."""

    def __init__(
        self,
        record: RunRecord,
        *,
        terms: Terms,
        connect: Connect,
        shards: Shards,
        runs: Runs,
        reader: Reader,
        declaration: Declaration,
        meter: Meter,
    ) -> None:
        self.gen = record.gen
        self.gone = threading.Event()
        self.stale = False
        self.failure: BaseException | None = None
        self.drained = threading.Event()
        """shardsvc has nothing left for anyone."""
        self._terms, self._shards, self._runs, self._reader = terms, shards, runs, reader
        self._declaration, self._meter = declaration, meter
        self._fleet = terms.fleet(connect, record)
        self._closing = threading.Event()
        self._map_lock = threading.Lock()
        self._lock = threading.Lock()
        self._book = LeaseBook()
        self._ttl_s = 60.0
        self._progressed = threading.Event()
        self._pending = Pending()
        self._readers_busy = 0
        self._turns: Turns | None = None
        self._read: Lane[Read] = queue.Queue(maxsize=terms.read_ahead)
        if terms.step_batches:
            self._read = self._turns = Turns(width=terms.batch_size * terms.step_batches, ahead=terms.read_ahead)
        self._ready: queue.Queue[Ready] = queue.Queue(maxsize=terms.in_flight)
        self._places = threading.Semaphore(terms.in_flight)
        self._pushers = ThreadPoolExecutor(terms.in_flight, thread_name_prefix="push")
        self._flying = 0
        self._landed = threading.Condition(self._lock)
        self._threads = [
            threading.Thread(target=self._guarded, args=(body,), name=body.__name__.strip("_"), daemon=True)
            for body in (self._lease, self._pulling, self._renewing, *([self._settling] if self._turns else []))
        ]
        self._threads += [
            threading.Thread(target=self._guarded, args=(partial(self._reading, number),), name="reading", daemon=True)
            for number in range(reader.threads)
        ]

    def start(self) -> None:
        """Leasing and reading begin at once; pulling when the model is declared."""
        for thread in self._threads:
            thread.start()

    # ---- what the session calls

    def next_ready(self, timeout_s: float) -> Ready | None:
        """The next batch for the model, or None when there is none in this time."""
        with contextlib.suppress(queue.Empty):
            return self._ready.get(timeout=timeout_s)
        return None

    def push(self, ready: Ready, grads: Gradients) -> None:
        """Sends a batch's gradients in the background."""
        with self._lock:
            self._flying += 1
        self._pushers.submit(self._guarded, lambda: self._push(ready, grads))

    def abandon(self) -> None:
        """A rollback happened: everything here is void."""
        self.stale = True
        self._closing.set()
        self.gone.set()
        self._progressed.set()

    def finish(self, timeout_s: float) -> bool:
        """Waits for pushes in flight, returns leases, ends threads; False when pushes were left behind."""
        self._closing.set()
        with self._landed:
            landed = self._landed.wait_for(lambda: self._flying == 0 or self.gone.is_set(), timeout_s)
        if self._turns and not self.gone.is_set():
            landed = self._turns.wait_until_applied(min(timeout_s, _DRAIN_STEP_S)) and landed
        self._threads[0].join(timeout=2.0)   # the leaser: what it still gets is returned below
        if not self.stale and self.failure is None:
            # shardsvc may be away: then the leases expire by themselves
            with contextlib.suppress(MeshError, StaleGeneration):
                self._settle(self._shards.renew(self.gen, progress := self._progress()), progress)
                self._shards.release(self.gen)
        self.close()
        return landed

    def close(self) -> None:
        """Ends the threads without waiting for anyone."""
        self._closing.set()
        self.gone.set()
        self._progressed.set()
        until = monotonic() + CLOSE_S
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=max(0.0, until - monotonic()))
        with self._lock:
            self._meter.occupied(False)
        self._pushers.shutdown(wait=False, cancel_futures=True)
        self._fleet.close()

    # ---- threads

    def _guarded(self, body: Callable[[], None]) -> None:
        try:
            body()
        except NoLongerWanted:
            pass
        except StaleGeneration:
            _log.info("generation %d is over", self.gen)
            self.abandon()
        except BaseException as error:  # whatever it was, the main thread must hear of it
            if not self.gone.is_set():
                self.failure = error
                self._closing.set()
                self.gone.set()
        finally:
            if self.gone.is_set():
                self._progressed.set()
                with self._landed:
                    self._landed.notify_all()

    def _lease(self) -> None:
        """Leases one shard ahead of the reader, and asks every server once what of it is applied."""
        while not self.gone.is_set() and not self._closing.is_set():
            below = self._turns.wanted(_POLL_S) if self._turns else 0
            if below is None:
                continue
            request_id = uuid.uuid4().hex
            reply = patiently(
                lambda: self._shards.lease(self.gen, shards=1, request_id=request_id, below=below),  # noqa: B023  # at once
                what="lease",
                gone=self.gone,
            )
            if reply.state == "stale_gen":
                raise StaleGeneration
            self.drained.set() if reply.state == "drained" else self.drained.clear()
            self._ttl_s = reply.ttl_s
            for lease in reply.leases:
                applied = self._applied(lease.piece)
                between = kind_borders(lease.tasks, self._terms.kinds)
                batches = missing_batches(lease.piece, applied, self._terms.batch_size, between=between)
                with self._lock:
                    self._book.take(lease, batches)
                    self._note_occupation()
                self._expect(len(batches))
                self._reader.announce(_touched(lease, batches))
                for piece in batches:
                    self._pending.offer((lease, piece), most=self._reader.ahead, gone=self.gone)
                if not batches:
                    self._progressed.set()
            if not reply.leases and not below:
                self._closing.wait(max(0.02, reply.retry_after_s))

    def _applied(self, piece: Piece) -> list[AppliedSets]:
        answers = self._each(lambda _, __, server: server.ledgers(self.gen, [piece]), what="ledgers")
        return list(answers.values())

    def _each(self, call: Callable[[Placement, int, ParameterServer], T], *, what: str) -> dict[int, T]:
        """The call to every server of the newest map; to all of them again when that has changed on the way."""
        placement = self._fleet.placement
        while True:
            under = placement
            try:
                return self._fleet.each(
                    lambda ps, server: call(under, ps, server),  # noqa: B023  # at once
                    placement=placement, what=what, gone=self.gone,
                )
            except WrongMap as refusal:
                placement = self._newer_map(refusal.since)

    def _reading(self, number: int) -> None:
        choose = partial(self._reader.choose, thread=number)
        while not self.gone.is_set():
            item = self._pending.take(choose, timeout_s=_POLL_S)
            if item is None:
                continue
            lease, piece = item
            with self._lock:
                is_wanted = self._book.wants(lease.epoch, piece)
                self._readers_busy += is_wanted
            if not is_wanted:
                self._expect(-1)
                self._reader.pass_over(lease.tasks, piece.lo, piece.hi)
                continue
            try:
                start = perf_counter()
                batch = self._reader.batch(lease.tasks, piece.lo, piece.hi)
                data_s = (perf_counter() - start) / max(1, self._readers_busy)     # what they wait for they share
            finally:
                with self._lock:
                    self._readers_busy -= 1
                self._pending.look_again()
            offer(self._read, Read(lease, piece, batch, data_s), gone=self.gone)

    def _pulling(self) -> None:
        declared = self._declaration.get(self.gone)
        self._declare(declared)
        while not self.gone.is_set():
            try:
                read = self._read.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            self._take_place()
            offer(self._ready, self._pull(read, declared), gone=self.gone)

    def _take_place(self) -> None:
        while not self._places.acquire(timeout=_POLL_S):
            if self.gone.is_set():
                raise NoLongerWanted("place in flight")

    def _pull(self, read: Read, declared: Declared) -> Ready:
        start = perf_counter()
        placement = self._fleet.placement
        while True:
            prepared = prepare(read.batch, declared, placement)
            prepared_s = perf_counter() - start
            made, rows = arenas(declared, prepared)
            dense = aligned((self._declaration.layout.size,))
            under = placement
            try:
                pulled = self._fleet.each(
                    lambda ps, server: pull_from(ps, server, prepared, declared, under),  # noqa: B023  # at once
                    placement=placement,
                    what="pull",
                    gone=self.gone,
                )
            except WrongMap as refusal:
                placement = self._newer_map(refusal.since)
                continue
            for k, ps in enumerate(placement.servers):
                fill(k, pulled[ps], prepared, declared, rows)
                self._declaration.layout.put(dense, pulled[ps].dense)
            self._meter.times(data_s=read.data_s + prepared_s, pull_s=perf_counter() - start - prepared_s)
            steps = {ps: answer.group_step for ps, answer in pulled.items()}
            return Ready(read, prepared, made, rows, dense, steps)

    def _declare(self, declared: Declared) -> None:
        layout = self._declaration.layout
        flat = layout.flatten(declared.initial)
        self._each(
            lambda placement, ps, server: server.declare(
                self.gen,
                tables=declared.tables,
                dense=declared.dense,
                values=layout.chunks(flat, placement.owners, ps),
            ),
            what="declare",
        )

    def _push(self, ready: Ready, grads: Gradients) -> None:
        start = perf_counter()
        lease, piece = ready.read.lease, ready.read.piece
        declared = self._declaration.get(self.gone)
        try:
            outcome = push_everywhere(
                piece,
                lease.epoch,
                ready.prepared,
                grads,
                fleet=self._fleet,
                tables=declared.tables,
                layout=self._declaration.layout,
                worker=self._terms.worker,
                newer_map=self._newer_map,
                gone=self.gone,
                terms=lambda ps: self._push_terms(ready, ps),
            )
            match outcome:
                case Applied():
                    self._applied_everywhere(lease, piece)
                case Overlap(cuts):
                    parts = cut_at(piece, cuts)
                    with self._lock:
                        recut = self._book.recut(lease.epoch, piece, parts)
                    if recut:
                        self._train_again(lease, parts)
                case TooOld():
                    self._train_again(lease, [piece])
                case NotOurs():
                    with self._lock:
                        self._book.forget([lease.epoch])
                        self._note_occupation()
                case Waits():
                    cast(Turns, self._turns).keep(Kept(ready, grads))
            self._meter.times(push_s=perf_counter() - start)
        finally:
            self._places.release()
            with self._landed:
                self._flying -= 1
                self._landed.notify_all()

    def heard(self, map_version: int) -> None:
        """jobmaster has published a map of this version."""
        self._fleet.heard(map_version)

    def _push_terms(self, ready: Ready, ps: int) -> PushTerms:
        if self._turns is None:
            return PushTerms(ready.pulled_step(ps), self._terms.staleness)
        step = self._turns.step_of(ready.read.lease, ready.read.piece)
        return PushTerms(step=step, step_batches=self._terms.step_batches)

    def _train_again(self, lease: Lease, parts: list[Piece]) -> None:
        """Read, pull and compute, before all others."""
        self._expect(len(parts))
        self._pending.again([(lease, part) for part in parts])

    def _expect(self, batches: int) -> None:
        if self._turns:
            self._turns.expect(batches)

    def _applied_everywhere(self, lease: Lease, piece: Piece) -> None:
        gate("worker.acked", piece)
        with self._lock:
            if self._book.applied(lease.epoch, piece):
                self._progressed.set()
                self._note_occupation()
        if self._turns:
            self._turns.applied(self._turns.step_of(lease, piece))

    def _settling(self) -> None:
        turns = cast(Turns, self._turns)
        Settling(turns, self._fleet, gen=self.gen, newer_map=self._newer_map, applied=self._applied_everywhere,
                 push_again=self._push_again, gone=self.gone).run()

    def _push_again(self, kept: Kept) -> None:
        """Unless it is another's by now."""
        with self._lock:
            wanted = self._book.wants(kept.ready.read.lease.epoch, kept.piece)
        if wanted:
            self._take_place()
            self.push(kept.ready, kept.grads)

    def _newer_map(self, since: int) -> Placement:
        """The record's map, once it is at least `since`. One thread asks; the others find the answer."""
        with self._map_lock:
            while self._fleet.placement.version < since:
                record = patiently(self._runs.record, what="run record", gone=self.gone)
                if record.gen != self.gen:
                    raise StaleGeneration
                if record.map_version >= since:
                    return self._fleet.use(record)
                self.gone.wait(0.002)  # a handoff takes milliseconds
                if self.gone.is_set():
                    raise NoLongerWanted("slot map")
            return self._fleet.placement

    def _renewing(self) -> None:
        while not self.gone.is_set():
            self._progressed.wait(timeout=min(self._ttl_s / 3, 5.0))
            self._progressed.clear()
            if not self.gone.is_set():
                self._report()

    def _report(self) -> None:
        if progress := self._progress():
            call = patiently(lambda: self._shards.renew(self.gen, progress), what="renew", gone=self.gone)
            self._settle(call, progress)

    def _progress(self) -> list[LeaseProgress]:
        with self._lock:
            return self._book.progress()

    def _settle(self, reply: RenewReply, progress: list[LeaseProgress]) -> None:
        if reply.stale_gen:
            raise StaleGeneration
        with self._lock:
            self._book.forget([item.epoch for item in progress if item.complete])
            self._book.forget(reply.lost)
            if any([self._book.cut(epoch, hi) for epoch, hi in reply.cuts.items()]):
                self._progressed.set()
            self._note_occupation()

    def _note_occupation(self) -> None:
        """With the lock held. What lands after the end of a generation says nothing of the next one."""
        if not self.gone.is_set():
            self._meter.occupied(not self._book.is_trained)


def _touched(lease: Lease, batches: Sequence[Piece]) -> list["TaskRecord"]:
    """The tasks of which a batch holds rows."""
    return [
        task for task in lease.tasks
        if not task.close and any(batch.lo < task.base + task.rows and task.base < batch.hi for batch in batches)
    ]
