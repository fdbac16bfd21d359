"""The ops page of ckptcache: what is kept, where, and how fast it gets there."""

from collections import deque
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from recmesh.runtime.clock import Clock
from recmesh.runtime.lifecycle import Loop
from services.ckptcache.app.checkpoints import Checkpoints
from services.ckptcache.app.figures import Figures
from services.ckptcache.app.flush import Flusher
from services.ckptcache.domain.snapshot import Snapshot, State
from services.ckptcache.store.files import SnapshotFiles

REFRESH_S = 2.0
POINTS = 300


class View:
    """What the page shows, refreshed in the background, so that showing it waits for nobody."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        flusher: Flusher,
        figures: Figures,
        files: SnapshotFiles,
        *,
        clock: Clock,
    ) -> None:
        self._checkpoints, self._flusher, self._figures = checkpoints, flusher, figures
        self._files, self._clock = files, clock
        self.snapshots: Sequence[Snapshot] = ()
        self.throughput: deque[tuple[float, float, float]] = deque(maxlen=POINTS)
        """(at, bytes/s to storage, bytes in memory)"""

    def loop(self) -> Loop:
        """Refreshes while the service runs."""
        return Loop("ops view", self.refresh)

    async def refresh(self) -> float:
        """One look; returns the pause until the next."""
        self.throughput.append(
            (self._clock.now(), self._figures.bytes_per_s(), float(self._figures.memory_bytes))
        )
        self.snapshots = await self._checkpoints.snapshots()
        return REFRESH_S

    def figures(self) -> Mapping[str, Any]:
        """For $SRV.STATS."""
        return {
            "snapshots": len(self.snapshots),
            "committed": sum(s.state is State.COMMITTED for s in self.snapshots),
            "memory_bytes": self._figures.memory_bytes,
            "written_bytes": self._figures.total_written_bytes,
            "ended": dict(self._figures.ended_by_state),
        }


def release() -> str:
    """recmesh's version."""
    try:
        return version("recmesh")
    except PackageNotFoundError:
        return "0"
