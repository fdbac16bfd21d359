"""Which snapshots may go."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from services.ckptcache.domain.snapshot import Snapshot, State


@dataclass(frozen=True, slots=True)
class Retention:
    """`keep` newest committed snapshots stay, and all younger than `max_age_s` if that is set.

    The newest committed one always stays: it is what the job's record restores from. What a kept one
    builds on stays with it. Damaged ones do not count, nor does what builds on one that cannot be read.
    """

    keep: int = 3
    max_age_s: float | None = None

    def expired(self, snapshots: Sequence[Snapshot], *, now: float, in_use: Collection[int] = ()) -> list[int]:
        """Numbers of one job's snapshots that may be deleted, oldest first; `in_use` are being restored."""
        usable = {snapshot.number for snapshot in snapshots if snapshot.usable}
        good = sorted(
            (s for s in snapshots if s.state is State.COMMITTED and usable.issuperset(s.bases)), key=lambda s: s.number
        )
        if not good:
            return []
        newest = good[-1]
        kept = {snapshot.number for snapshot in good[-max(1, self.keep) :]}
        if self.max_age_s is not None:
            kept = {s.number for s in good if s.number in kept and now - s.committed <= self.max_age_s}
        kept.add(newest.number)
        kept |= {number for s in good if s.number in kept or s.number in in_use for number in s.bases}
        # Whatever is older than the newest good one and not committed will never be named by the record.
        return sorted(
            snapshot.number
            for snapshot in snapshots
            if snapshot.number < newest.number
            and snapshot.number not in kept
            and snapshot.number not in in_use
            and snapshot.state is not State.COLLECTING
        )


@dataclass(frozen=True, slots=True)
class Copy:
    """A part's copy in memory."""

    job_id: str
    number: int
    ps: int
    size_bytes: int
    flushed: bool
    """On storage too; a copy that is not must not be dropped."""
    base: int = 0
    """The snapshot that the part builds on; 0: none."""


def to_evict(copies: Sequence[Copy], *, budget_bytes: int, newest: int) -> list[Copy]:
    """Copies to drop so that each job has its `newest` snapshots at most, and all fit the budget.

    Those that the newest ones build on stay with them, as long as the budget allows. Oldest snapshot
    numbers of a job go first; between jobs, the one that holds most.
    """
    evicted: list[Copy] = []
    kept = list(copies)
    wanted = {job_id: _newest(copies, job_id, newest) for job_id in {copy.job_id for copy in kept}}
    for copy in list(kept):
        if copy.flushed and copy.number not in wanted[copy.job_id]:
            kept.remove(copy)
            evicted.append(copy)
    while sum(copy.size_bytes for copy in kept) > budget_bytes:
        droppable = [copy for copy in kept if copy.flushed]
        if not droppable:
            break
        held: dict[str, int] = {}
        for copy in kept:
            held[copy.job_id] = held.get(copy.job_id, 0) + copy.size_bytes
        worst = min(droppable, key=lambda copy: (-held[copy.job_id], copy.job_id, copy.number, copy.ps))
        kept.remove(worst)
        evicted.append(worst)
    return evicted


def _newest(copies: Sequence[Copy], job_id: str, count: int) -> set[int]:
    """A job's newest snapshots in memory, and what they build on."""
    bases = {copy.number: copy.base for copy in copies if copy.job_id == job_id and copy.base}
    chosen: set[int] = set()
    for number in sorted({copy.number for copy in copies if copy.job_id == job_id}, reverse=True)[:count]:
        while number and number not in chosen:
            chosen.add(number)
            number = bases.get(number, 0)
    return chosen
