"""The store of queues: `ValkeyQueue` in production; one test suite holds every implementation to this."""

from collections.abc import Sequence
from typing import Literal, Protocol

from recmesh.formats import IntervalSet
from services.shardsvc.domain.lease import Extended, Granted, Opening, Reconciled, Released, Renewed, View

MOST_SHARDS = 256
"""Leases in one answer."""

MOST_HELD = 4096
"""Leases of one worker: more are not granted, so that ending them all stays one short script."""

Opened = Literal["opened", "exists", "adopted", "stale"]


class QueueStore(Protocol):
    """Queues of jobs, one generation each. Every call is atomic, and time is the store's own.

    A queue that the store lost, wholly or in part, answers REOPEN to everything until `open`.
    """

    async def open(self, job_id: str, opening: Opening) -> Opened:
        """Makes the queue of a generation in place of older ones; the same generation again keeps it."""
        ...

    async def extend(self, job_id: str, gen: int, *, total: int, closed: bool) -> Extended:
        """The line ends at `total` now: what is beyond the queue's own end is queued. A smaller one changes nothing."""
        ...

    async def lease(
        self, job_id: str, gen: int, *, worker: str, shards: int, request_id: str, below: int = 0
    ) -> Granted:
        """Leases up to `shards` pieces from the front; a repeated request id gets the same ones.

        When nothing is queued, a worker without leases takes part of one whose holder is slow, or that is old.
        With `below` only pieces that are queued and begin before it, also for a worker whose shards are smaller: WAIT
        when there are none, whatever is queued behind.
        """
        ...

    async def renew(
        self, job_id: str, gen: int, *, worker: str, progress: Sequence[tuple[int, int, bool, int]]
    ) -> Renewed:
        """(epoch, trained to, complete, known end or 0) each; what the worker no longer holds is lost."""
        ...

    async def size(self, job_id: str, gen: int, *, worker: str, shard_batches: int) -> Released:
        """Shards of so many batches for this worker (0: as the run's again); what it holds beyond is queued."""
        ...

    async def release(self, job_id: str, gen: int, *, worker: str, crashed: bool) -> Released:
        """Ends all of the worker's leases; after a crash, who is suspected of it."""
        ...

    async def reconcile(self, job_id: str, gen: int, *, done: IntervalSet) -> Reconciled:
        """Queues what is neither done nor queued nor held nor just trained; takes done pieces out."""
        ...

    async def look(self, job_id: str, gen: int) -> tuple[Released, View | None]:
        """Ends leases that are over (told in the first part), then the queue as it is."""
        ...

    async def sweep(self, job_id: str, gen: int) -> Released:
        """Ends leases that are over."""
        ...

    async def forget(self, job_id: str, gen: int) -> None:
        """Drops everything of a job."""
        ...
