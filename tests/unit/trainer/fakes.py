"""Hand-written stand-ins for jobmaster, shardsvc and parameter servers that keep the protocol's rules."""

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from recmesh.data.records import Batch, IdColumn, TaskRecord
from recmesh.formats import IntervalSet, SlotMap, slots_of
from recmesh.runtime.errors import Aborted, Unavailable
from recmesh.spec.job import TrainingJob
from recmesh.trainer.ports import (
    UNCONDITIONAL,
    AppliedSets,
    Assignment,
    Beat,
    BeatReply,
    Chunk,
    DenseDeclaration,
    Lease,
    LeaseProgress,
    LeaseReply,
    Member,
    Piece,
    Pulled,
    PushAck,
    PushTerms,
    RenewReply,
    RunRecord,
    Settled,
    TableDeclaration,
    TableGrads,
)
from recmesh.trainer.session import Ints


def job_spec(**training: object) -> TrainingJob:
    return TrainingJob.parse({
        "name": "job",
        "model": {"entrypoint": "m:main"},
        "data": {
            "source": {"files": ["nowhere"]},
            "features": [{"name": "a"}, {"name": "b"}, {"name": "x", "kind": "dense"}],
        },
        "training": {"batch_size": 4, "shard_batches": 3, **training},
    })


class PositionReader:
    """Batches whose ids are a pure function of the position: a = p % 7, b = p % 3."""

    bad_records = 0

    def batch(self, tasks: Sequence[TaskRecord], lo: int, hi: int) -> Batch:
        positions = np.arange(lo, hi, dtype=np.int64)
        return Batch(
            size=hi - lo,
            ids={"a": IdColumn(positions % 7), "b": IdColumn(positions % 3)},
            dense=np.ones((hi - lo, 1), np.float32),
            labels=(positions % 2).astype(np.float32)[:, None],
        )


class FakeServer:
    """One parameter server: slots by a map, a ledger, and sums of what was pushed."""

    def __init__(self, ps: int, slot_map: SlotMap, gen: int = 1) -> None:
        self.ps, self.gen, self.map, self.since = ps, gen, slot_map, slot_map.version
        self.lock = threading.Lock()
        self.applied = IntervalSet()
        self.sums: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        self.counts: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self.dense: dict[tuple[int, int], np.ndarray] = {}
        self.tables: Sequence[TableDeclaration] = ()
        self.before_push: Callable[[Piece], None] = lambda piece: None
        self.after_push: Callable[[Piece], None] = lambda piece: None
        self.pushed: list[Piece] = []
        self.pulls = 0
        self.closed = 0

    def declare(
        self,
        gen: int,
        *,
        tables: Sequence[TableDeclaration],
        dense: Sequence[DenseDeclaration],
        values: Sequence[Chunk],
    ) -> None:
        self._check(gen)
        self.tables = tables
        for chunk in values:
            self.dense.setdefault((chunk.block, chunk.chunk), chunk.values.copy())

    def pull(
        self,
        gen: int,
        *,
        map_version: int,
        tables: Sequence[tuple[int, Ints]],
        dense: bool,
        dense_since: int = 0,
        absent_as_zero: bool = False,
    ) -> Pulled:
        self._check(gen)
        with self.lock:   # a move of slots is one moment, as under the latch of a real server
            if map_version < self.since:
                raise Aborted("moved", reason="WRONG_MAP", metadata={"since": str(self.since)})
            self.pulls += 1
            rows = []
            for number, ids in tables:
                table = self.tables[number]
                assert (self.map.owners[slots_of(ids, table.name)] == self.ps).all()
                sums = self.sums[table.name]
                rows.append(np.array([[sums[int(i)]] * table.dim for i in ids], np.float32))
            return Pulled(rows, [Chunk(b, c, v.copy()) for (b, c), v in self.dense.items()],
                          group_step=len(self.pushed))

    def push(
        self,
        gen: int,
        *,
        map_version: int,
        batch: Sequence[Piece],
        epoch: int,
        tables: Sequence[TableGrads],
        dense: Sequence[Chunk],
        worker: str,
        terms: PushTerms = UNCONDITIONAL,
    ) -> PushAck:
        (piece,) = batch
        self.before_push(piece)
        with self.lock:
            if gen != self.gen:
                return PushAck("stale_gen")
            if map_version < self.since:
                return PushAck("wrong_map", since=self.since)
            duplicate = self.applied.covers(piece.lo, piece.hi)
            if not duplicate and not self.applied.disjoint(piece.lo, piece.hi):
                held = [Piece(0, lo, hi) for lo, hi in self.applied if lo < piece.hi and piece.lo < hi]
                return PushAck("overlap", cuts=tuple(held))
            if not duplicate and terms.staleness and len(self.pushed) > terms.pulled_step + terms.staleness:
                return PushAck("stale")
            if not duplicate:
                self._apply(piece, tables, dense)
        self.after_push(piece)
        return PushAck("applied", duplicate=duplicate)

    def _apply(self, piece: Piece, tables: Sequence[TableGrads], dense: Sequence[Chunk]) -> None:
        for part in tables:
            name = self.tables[part.table].name
            assert (self.map.owners[slots_of(part.ids, name)] == self.ps).all()
            for i, grad, count in zip(part.ids, part.grads, part.counts, strict=True):
                self.sums[name][int(i)] += float(grad[0])
                self.counts[name][int(i)] += int(count)
        for chunk in dense:
            self.dense[chunk.block, chunk.chunk] += chunk.values
        self.applied.add(piece.lo, piece.hi)
        self.pushed.append(piece)

    def settled(
        self, gen: int, *, map_version: int, pieces: Sequence[Piece], others: bool, wait_s: float
    ) -> Settled:
        raise AssertionError("nobody asks an asynchronous server")

    def ledgers(self, gen: int, within: Sequence[Piece]) -> AppliedSets:
        self._check(gen)
        pieces = tuple(Piece(0, lo, hi) for lo, hi in self.applied)
        return AppliedSets(pieces, pieces)

    def close(self) -> None:
        self.closed += 1

    def _check(self, gen: int) -> None:
        if gen != self.gen:
            raise Aborted("rolled back", reason="STALE_GEN")


class FakeShards:
    """A queue of shards with leases that never expire by themselves."""

    def __init__(self, total: int, shard: int, gen: int = 1) -> None:
        self.gen, self.total = gen, total
        self.queue = [Piece(0, lo, min(lo + shard, total)) for lo in range(0, total, shard)]
        self.tasks: tuple[TaskRecord, ...] = (TaskRecord(1, 0, 0, total, 0, 0, None),)
        self.leased: dict[int, Piece] = {}
        self.epoch = 0
        self.lock = threading.Lock()
        self.released = 0
        self.outage = threading.Event()
        self.cut_to: int | None = None
        """Leases end there from the next renewal on; the rest is nobody's."""

    def lease(self, gen: int, *, shards: int, request_id: str, below: int = 0) -> LeaseReply:
        if self.outage.is_set():
            raise Unavailable("shardsvc is away")
        with self.lock:
            if gen != self.gen:
                return LeaseReply("stale_gen")
            if not self.queue:
                return LeaseReply("wait" if self.leased else "drained", retry_after_s=0.02)
            self.epoch += 1
            piece = self.queue.pop(0)
            self.leased[self.epoch] = piece
            return LeaseReply("granted", (Lease(self.epoch, piece, self.tasks),), ttl_s=0.3)

    def renew(self, gen: int, leases: Sequence[LeaseProgress]) -> RenewReply:
        with self.lock:
            if gen != self.gen:
                return RenewReply(stale_gen=True)
            lost = frozenset(item.epoch for item in leases if item.epoch not in self.leased)
            for item in leases:
                if item.complete:
                    self.leased.pop(item.epoch, None)
                elif item.epoch in self.leased:
                    piece = self.leased[item.epoch]
                    self.leased[item.epoch] = piece._replace(lo=max(piece.lo, item.done_to))
            return RenewReply(lost, cuts=self._cut(leases))

    def _cut(self, leases: Sequence[LeaseProgress]) -> dict[int, int]:
        if self.cut_to is None:
            return {}
        cuts = {item.epoch: max(self.cut_to, item.done_to) for item in leases if item.epoch in self.leased}
        for epoch, hi in cuts.items():
            self.leased[epoch] = self.leased[epoch]._replace(hi=min(hi, self.leased[epoch].hi))
        return cuts

    def release(self, gen: int) -> None:
        with self.lock:
            self.queue[:0] = list(self.leased.values())
            self.leased.clear()
            self.released += 1


class FakeRuns:
    """jobmaster with a record that tests change."""

    def __init__(self, record: RunRecord) -> None:
        self.now = record
        self.beats: list[Beat] = []
        self.reports: list[dict[str, float]] = []

    def register(self, *, address: str = "") -> Assignment:
        return Assignment("", self.now, 0.05, "", "", "")

    def heartbeat(self, beat: Beat) -> BeatReply:
        self.beats.append(beat)
        return BeatReply("continue", self.now.gen, self.now.map_version, self.now.phase)

    def record(self, *, newer_than_gen: int = 0, wait_s: float = 0.0) -> RunRecord:
        return self.now

    def report(
        self,
        metrics: Mapping[str, float],
        *,
        snapshot: int = 0,
        samples: int = 0,
        model_uri: str = "",
        framework: str = "",
        error: str = "",
        final: bool = False,
    ) -> None:
        self.reports.append(dict(metrics))


def record_of(slot_map: SlotMap, servers: int, gen: int = 1, phase: str = "open") -> RunRecord:
    members = tuple(Member(ps, f"ps-{ps}", f"{gen}-{ps}") for ps in range(servers))
    return RunRecord(gen, phase, slot_map.version, slot_map.owners, members)
