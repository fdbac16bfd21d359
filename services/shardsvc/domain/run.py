"""A job's run as it outlives the queue: what is needed to build the queue again."""

from dataclasses import dataclass, replace

from recmesh.formats import IntervalSet
from recmesh.runtime.errors import FailedPrecondition
from services.shardsvc.domain.lease import Opening
from services.shardsvc.domain.line import Line

EPOCHS_PER_LIFE = 1 << 32
"""Lease epochs of one life of the queue; lives count up, so none comes twice; 2^53 is 2 million lives."""


@dataclass(frozen=True, slots=True)
class Run:
    """Kept durably, changed by compare-and-set."""

    job_id: str
    gen: int
    batch_size: int
    shard_batches: int
    ttl_s: float
    done: IntervalSet
    """Of the newest snapshot that the jobmaster told of."""
    life: int = 1
    """Counts how often the queue was built; lease epochs start at `life * EPOCHS_PER_LIFE`."""
    closed: bool = False

    def opened(self, newer: "Run") -> "Run":
        """The run after OpenRun(newer). FailedPrecondition when it is of an older generation.

        The same generation again changes nothing: what was reconciled meanwhile is newer than its base.
        """
        if newer.gen < self.gen:
            raise stale(self.job_id, newer.gen, self.gen)
        if newer.gen == self.gen and not self.closed:
            return self
        return replace(newer, life=max(newer.life, self.life + 1))

    def rebuilt(self) -> "Run":
        """The run of a queue that was lost: epochs start above all that it may have issued."""
        return replace(self, life=self.life + 1)

    def reconciled(self, gen: int, done: IntervalSet) -> "Run":
        """The run after a snapshot of its generation."""
        if gen != self.gen:
            raise stale(self.job_id, gen, self.gen)
        return replace(self, done=done)

    def opening(self, line: Line) -> Opening:
        """The queue that this run starts from."""
        return Opening(
            gen=self.gen,
            total=line.end,
            batch_size=self.batch_size,
            shard_batches=self.shard_batches,
            ttl_s=self.ttl_s,
            first_epoch=self.life * EPOCHS_PER_LIFE,
            to_do=tuple(line.to_do(self.done)),
            more=not line.closed,
        )


def life_above(epoch_floor: int) -> int:
    """The first life whose lease epochs are all above the floor."""
    return epoch_floor // EPOCHS_PER_LIFE + 1


def stale(job_id: str, gen: int, current: int) -> FailedPrecondition:
    """The refusal of an older generation."""
    return FailedPrecondition(
        f"generation {gen} of job {job_id} is over; {current} is the current one",
        reason="STALE_GEN",
        metadata={"gen": str(current)},
    )
