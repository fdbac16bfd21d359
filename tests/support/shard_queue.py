"""A queue of leases in memory, on a clock that the test moves. It follows the same rules as the scripts."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from recmesh.formats import IntervalSet
from services.shardsvc.domain.cutting import kept_end, shard_batches, shard_end, stolen_from, suspect
from services.shardsvc.domain.lease import (
    Cause,
    Extended,
    Granted,
    Lease,
    Opening,
    Reconciled,
    Released,
    Renewed,
    Requeued,
    State,
    View,
)
from services.shardsvc.store.queue import MOST_HELD, Opened


@dataclass
class _Queue:
    opening: Opening
    life: int
    next_epoch: int
    queued: IntervalSet
    leases: dict[int, Lease] = field(default_factory=dict)
    expiry: dict[int, float] = field(default_factory=dict)
    since: dict[int, float] = field(default_factory=dict)
    recent: IntervalSet = field(default_factory=IntervalSet)
    lapsed: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    requests: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    twins: dict[int, int] = field(default_factory=dict)
    releases: dict[str, tuple[tuple[tuple[int, int], ...], int]] = field(default_factory=dict)
    granted: int = 0
    requeues: int = 0
    expirations: int = 0


class MemoryQueue:
    """`QueueStore` in one process."""

    def __init__(self) -> None:
        self._queues: dict[str, _Queue] = {}
        self._deaths: dict[tuple[str, int], int] = {}
        self.now_s = 1000.0
        self.life = 1

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds

    def lose_everything(self) -> None:
        self._queues.clear()
        self._deaths.clear()

    def restart(self) -> None:
        """The server comes back with its data and a new identity."""
        self.life += 1

    async def open(self, job_id: str, opening: Opening) -> Opened:
        old = self._queues.get(job_id)
        if old and old.opening.gen > opening.gen:
            return "stale"
        if old and old.opening.gen == opening.gen:
            if old.life == self.life:
                return "exists"
            old.life, old.next_epoch = self.life, max(old.next_epoch, opening.first_epoch)
            self._grow(old, opening.total, closed=not opening.more)
            return "adopted"
        self._queues[job_id] = _Queue(opening, self.life, opening.first_epoch, IntervalSet(opening.to_do))
        return "opened"

    async def extend(self, job_id: str, gen: int, *, total: int, closed: bool) -> Extended:
        queue = self._find(job_id, gen)
        if isinstance(queue, State):
            return Extended(queue)
        self._grow(queue, total, closed=closed)
        return Extended(State.GRANTED, queue.queued.size)

    def _grow(self, queue: _Queue, total: int, *, closed: bool) -> None:
        before = queue.opening.total
        if total > before:
            queue.queued.add(before, total)
        queue.opening = replace(queue.opening, total=max(before, total), more=queue.opening.more and not closed)

    def _find(self, job_id: str, gen: int) -> _Queue | State:
        queue = self._queues.get(job_id)
        if queue is None:
            return State.REOPEN
        if queue.opening.gen > gen:
            return State.STALE_GEN
        if queue.opening.gen < gen or queue.life != self.life:
            return State.REOPEN
        return queue

    def _drop(self, queue: _Queue, epoch: int) -> Lease:
        queue.expiry.pop(epoch)
        queue.since.pop(epoch)
        return queue.leases.pop(epoch)

    def _give_back(self, queue: _Queue, epoch: int, cause: Cause) -> list[Requeued]:
        lease = self._drop(queue, epoch)
        queue.recent.add(lease.lo, lease.progress)
        if self._untwin(queue, epoch) is not None or lease.progress >= lease.hi:
            return []
        queue.queued.add(lease.progress, lease.hi)
        queue.requeues += 1
        return [Requeued(lease.worker, epoch, lease.progress, lease.hi, cause)]

    def _untwin(self, queue: _Queue, epoch: int) -> int | None:
        other = queue.twins.pop(epoch, None)
        if other is not None:
            queue.twins.pop(other)
        return other

    def _expire(self, queue: _Queue) -> tuple[Requeued, ...]:
        told: list[Requeued] = []
        for epoch in sorted(epoch for epoch, at in queue.expiry.items() if at <= self.now_s):
            lease = queue.leases[epoch]
            queue.lapsed.setdefault(lease.worker, (lease.lo, lease.hi, lease.progress))
            queue.expirations += 1
            told += self._give_back(queue, epoch, Cause.EXPIRED)
        return tuple(told)

    async def lease(
        self, job_id: str, gen: int, *, worker: str, shards: int, request_id: str, below: int = 0
    ) -> Granted:
        queue = self._find(job_id, gen)
        if isinstance(queue, State):
            return Granted(queue)
        told, ttl_s = self._expire(queue), queue.opening.ttl_s
        before = [
            queue.leases[epoch]
            for epoch in queue.requests.get((worker, request_id), [])
            if request_id and epoch in queue.leases
        ]
        if before:
            queue.expiry |= {lease.epoch: self.now_s + ttl_s for lease in before}
            return Granted(State.GRANTED, tuple(before), ttl_s, 0.0, told)
        holders = len({lease.worker for lease in queue.leases.values()} | {worker})
        granted: list[Lease] = []
        mine = [lease for lease in queue.leases.values() if lease.worker == worker]
        size, most = queue.opening.batch_size, queue.opening.shard_batches
        wanted, own = min(shards, MOST_HELD - len(mine)), None if below else queue.sizes.get(worker)
        if own is not None:
            most = min(most, own)
            left = most - sum(-(-(lease.hi - lease.progress) // size) for lease in mine)
            wanted, most = (min(wanted, 1) if left * 2 >= most else 0), max(1, left)
        while len(granted) < wanted and queue.queued:
            lo, hi = queue.queued.pairs()[0]
            if below and lo >= below:
                break
            batches = shard_batches(queue.queued.size, holders=holders, batch_size=size, most=most)
            stop = shard_end(lo, hi, batch_size=size, batches=batches)
            queue.queued.remove(lo, stop)
            granted.append(Lease(queue.next_epoch, worker, lo, stop, lo))
            queue.next_epoch += 1
        if not granted and wanted > 0 and not mine and own is None and not below:
            granted += self._steal(queue, worker)
        for lease in granted:
            queue.leases[lease.epoch] = lease
            queue.expiry[lease.epoch] = self.now_s + ttl_s
            queue.since[lease.epoch] = self.now_s
        queue.granted += len(granted)
        if granted:
            queue.lapsed.pop(worker, None)
            queue.requests[worker, request_id] = [lease.epoch for lease in granted]
            return Granted(State.GRANTED, tuple(granted), ttl_s, 0.0, told)
        if not queue.leases and not queue.queued and not queue.opening.more:
            return Granted(State.DRAINED, (), ttl_s, 0.0, told)
        wait_s = min(1.0, max(0.05, min(queue.expiry.values(), default=0.0) - self.now_s))
        return Granted(State.WAIT, (), ttl_s, wait_s, told)

    def _steal(self, queue: _Queue, worker: str) -> list[Lease]:
        late = [
            lease for epoch, lease in queue.leases.items()
            if lease.worker != worker and lease.progress < lease.hi and epoch not in queue.twins
            and (self.now_s - queue.since[epoch] >= queue.opening.ttl_s / 3 or lease.worker in queue.sizes)
        ]
        if not late:
            return []
        best = max(late, key=lambda lease: (lease.hi - lease.progress, -lease.lo))
        start = stolen_from(best.lo, best.progress, best.hi, batch_size=queue.opening.batch_size)
        taken = Lease(queue.next_epoch, worker, start, best.hi, start)
        queue.next_epoch += 1
        if start == best.progress:
            queue.twins |= {best.epoch: taken.epoch, taken.epoch: best.epoch}
        else:
            queue.leases[best.epoch] = replace(best, hi=start)
        return [taken]

    async def renew(
        self, job_id: str, gen: int, *, worker: str, progress: Sequence[tuple[int, int, bool, int]]
    ) -> Renewed:
        queue = self._find(job_id, gen)
        if isinstance(queue, State):
            return Renewed(queue)
        lost: list[int] = []
        ended: set[int] = set()
        cuts: list[tuple[int, int]] = []
        for epoch, done_to, complete, known in progress:
            lease = queue.leases.get(epoch)
            if epoch in ended:
                continue
            if lease is None or lease.worker != worker:
                lost.append(epoch)
            elif complete:
                ended.add(epoch)
                self._drop(queue, epoch)
                queue.recent.add(lease.lo, lease.hi)
                other = self._untwin(queue, epoch)
                if other is not None:
                    ended.add(other)
                    twin = self._drop(queue, other)
                    queue.recent.add(twin.lo, twin.progress)
            else:
                reached = max(lease.progress, min(done_to, lease.hi))
                queue.leases[epoch] = replace(lease, progress=reached)
                queue.expiry[epoch] = self.now_s + queue.opening.ttl_s
                if known > lease.hi:
                    cuts.append((epoch, lease.hi))
        return Renewed(State.GRANTED, tuple(lost), tuple(cuts))

    async def size(self, job_id: str, gen: int, *, worker: str, shard_batches: int) -> Released:
        queue = self._find(job_id, gen)
        if isinstance(queue, State):
            return Released(queue)
        queue.sizes.pop(worker, None)
        if not shard_batches:
            return Released(State.GRANTED)
        queue.sizes[worker] = keep = shard_batches
        told: list[Requeued] = []
        for epoch, lease in sorted(queue.leases.items()):
            left = -(-(lease.hi - lease.progress) // queue.opening.batch_size)
            if lease.worker != worker or not left:
                continue
            if not keep:
                told += self._give_back(queue, epoch, Cause.CUT)
                continue
            size = queue.opening.batch_size
            end = kept_end(lease.lo, lease.progress, lease.hi, batch_size=size, batches=keep)
            if end < lease.hi:
                queue.queued.add(end, lease.hi)
                queue.requeues += 1
                queue.leases[epoch] = replace(lease, hi=end)
                told.append(Requeued(worker, epoch, end, lease.hi, Cause.CUT))
            keep = max(0, keep - left)
        return Released(State.GRANTED, tuple(told))

    async def release(self, job_id: str, gen: int, *, worker: str, crashed: bool) -> Released:
        queue = self._find(job_id, gen)
        if isinstance(queue, State):
            return Released(queue)
        mine = [lease for _, lease in sorted(queue.leases.items()) if lease.worker == worker]
        cause = Cause.CRASHED if crashed else Cause.RELEASED
        told = tuple(one for lease in mine for one in self._give_back(queue, lease.epoch, cause))
        lapsed = queue.lapsed.pop(worker, None)
        if not crashed:
            return Released(State.GRANTED, told)
        spans = [*([lapsed] if lapsed else []), *((lease.lo, lease.hi, lease.progress) for lease in mine)]
        size = queue.opening.batch_size
        found = [suspect(lo, progress, hi, batch_size=size) for lo, hi, progress in spans]
        suspects = tuple(pair for pair in found if pair is not None)
        if not suspects:
            kept, deaths = queue.releases.get(worker, ((), 0))
            return Released(State.GRANTED, told, kept, deaths)
        at = (job_id, suspects[0][0])
        self._deaths[at] = self._deaths.get(at, 0) + 1
        queue.releases[worker] = (suspects, self._deaths[at])
        return Released(State.GRANTED, told, suspects, self._deaths[at])

    async def reconcile(self, job_id: str, gen: int, *, done: IntervalSet) -> Reconciled:
        queue = self._find(job_id, gen)
        if isinstance(queue, State):
            return Reconciled(queue)
        self._expire(queue)
        cover = done.union(queue.queued)
        for lease in queue.leases.values():
            cover.add(lease.lo, lease.hi)
        if queue.queued or queue.leases:
            cover = cover.union(queue.recent)
        queue.recent = IntervalSet()
        orphans = cover.missing_within(0, queue.opening.total)
        queue.queued = queue.queued.difference(done).union(IntervalSet(orphans))
        queue.requeues += len(orphans)
        return Reconciled(State.GRANTED, tuple(orphans))

    async def look(self, job_id: str, gen: int) -> tuple[Released, View | None]:
        queue = self._find(job_id, gen)
        if isinstance(queue, State):
            return Released(queue), None
        told = self._expire(queue)
        held = tuple(
            replace(lease, age_s=self.now_s - queue.since[epoch])
            for epoch, lease in sorted(queue.leases.items()) if queue.twins.get(epoch, epoch) >= epoch
        )
        total, size, pieces = queue.opening.total, queue.queued.size, len(queue.queued)
        first = min((lo for lo, _ in queue.queued.pairs()), default=-1)
        view = View(gen, total, size, held, queue.expirations, queue.requeues, queue.granted, pieces, first)
        return Released(State.GRANTED, told), view

    async def sweep(self, job_id: str, gen: int) -> Released:
        return (await self.look(job_id, gen))[0]

    async def forget(self, job_id: str, gen: int) -> None:
        self._queues.pop(job_id, None)
        self._deaths = {key: count for key, count in self._deaths.items() if key[0] != job_id}
