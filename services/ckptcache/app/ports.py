"""What the use cases ask of the outside, beyond the store."""

from dataclasses import dataclass
from typing import Protocol

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

    def ended(self, state: str) -> None:
        """A snapshot became stored, committed, failed or damaged."""
        ...


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator chose."""

    node: str
    memory_budget_bytes: int
    memory_snapshots: int = 2
    keep: int = 3
    max_age_s: float | None = None
    restore_grace_s: float = 600.0
    """A snapshot that was read this recently is not removed by retention."""
    part_limit_bytes: int = 1 << 40
    abandoned_after_s: float = 86_400.0
    """What another node has been collecting for this long will not be finished: that node is gone."""
