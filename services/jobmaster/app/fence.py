"""The fence around jobs that this jobmaster holds no more: nothing is written for them, not even late.

Whoever was stopped for longer than its lease believes that it still holds its buckets until it has looked. Its clock
tells it sooner, also where the machine slept (`LeaseClock`): what it writes, to the store or to a cluster, it writes
within its lease or not at all. The clock counts from before the renewal was sent, so that the fence closes before
anybody else can see the lease end. What was sent in time and arrives late is refused by compare-and-set, or changes
nothing (names of processes are given once).
"""

from collections.abc import Iterable

from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import Unavailable
from services.jobmaster.domain.shards import bucket_of

LEASE_OVER = "LEASE_OVER"


class Fence:
    """Closed until somebody opens it."""

    def __init__(self, clock: Clock) -> None:
        """clock: whose monotonic seconds are those of the lease, `LeaseClock`."""
        self._clock = clock
        self._until = float("-inf")
        self.buckets: frozenset[int] = frozenset()
        """Held by this jobmaster, as the store says."""

    @property
    def is_open(self) -> bool:
        """The lease is not over."""
        return self._clock.monotonic() < self._until

    def open_until(self, at: float) -> None:
        """On the clock's monotonic line."""
        self._until = at

    def close(self) -> None:
        """For all buckets, which have to be taken again."""
        self._until, self.buckets = float("-inf"), frozenset()

    def add(self, buckets: Iterable[int]) -> None:
        """Taken."""
        self.buckets |= frozenset(buckets)

    def remove(self, buckets: Iterable[int]) -> None:
        """Given to others, or lost to them."""
        self.buckets -= frozenset(buckets)

    def check(self, job_id: str) -> None:
        """Unavailable unless this jobmaster may write for the job now."""
        if not self.is_open or bucket_of(job_id) not in self.buckets:
            raise Unavailable(f"the lease on job {job_id} is over, or another's", reason=LEASE_OVER)
