"""What the use cases ask of the outside, beyond the store."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from services.ckptcache.domain.parts import Part
from services.ckptcache.domain.snapshot import Snapshot


class Announcements(Protocol):
    """Facts for the rest of the mesh. Calls return at once; delivery is retried behind them."""

    def stored(self, snapshot: Snapshot, *, took_s: float) -> None:
        """All parts are on storage."""
        ...

    def damaged(self, snapshot: Snapshot, reason: str) -> None:
        """What was stored is not what is there."""
        ...


class Meter(Protocol):
    """Figures for dashboards."""

    def written(self, size_bytes: int) -> None:
        """Bytes went to storage."""
        ...

    def flushed(self, *, seconds: float, size_bytes: int) -> None:
        """A part is on storage."""
        ...

    def memory(self, size_bytes: int) -> None:
        """Bytes held in shared memory now."""
        ...

    def replicated(self, size_bytes: int) -> None:
        """A part was copied to a peer's memory."""
        ...

    def ended(self, state: str) -> None:
        """A snapshot became stored, committed, failed or damaged."""
        ...


class Peer(Protocol):
    """The ckptcache of another node. Every call raises a MeshError when it cannot."""

    address: str

    async def hold(
        self, job_id: str, number: int, gen: int, part: Part, data: AsyncIterator[bytes], *, timeout_s: float
    ) -> None:
        """Hold a copy; the files lie one behind the other in `data`."""
        ...

    async def locate(self, part_uri: str, *, timeout_s: float) -> Part:
        """What is held of a part; NotFound."""
        ...

    def fetch(self, part_uri: str, file: str) -> AsyncIterator[bytes]:
        """A file of a copy."""
        ...

    async def drop(self, job_id: str, number: int) -> None:
        """Forget a snapshot, or all of the job's for number 0."""
        ...


class Peers(Protocol):
    """All of them."""

    @property
    def configured(self) -> Sequence[str]:
        """As the operator named them."""
        ...

    async def all(self) -> Sequence[Peer]:
        """In no particular order; Unavailable when none is known."""
        ...

    async def close(self) -> None:
        """No more calls."""
        ...


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator chose."""

    node: str
    memory_budget_bytes: int
    memory_snapshots: int = 2
    keep: int = 3
    max_age_s: float | None = None
    replica_budget_bytes: int = 4 << 30
    """Memory for copies of other nodes' parts."""
    replica_bytes_per_s: int = 0
    """Of copies to a peer; 0: as fast as it goes."""
    replica_max_age_s: float = 86_400.0
    """A copy this old is let go: who sent it would have sent a newer one."""
    restore_grace_s: float = 600.0
    """A snapshot that was read this recently is not removed by retention."""
    part_limit_bytes: int = 1 << 40
    abandoned_after_s: float = 86_400.0
    """What another node has been collecting for this long will not be finished: that node is gone."""
