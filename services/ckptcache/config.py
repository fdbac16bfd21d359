"""What the environment may set, with prefix `RECMESH_`."""

import platform
from pathlib import Path

from pydantic import Field

from recmesh.runtime.settings import ServiceSettings


class CkptcacheSettings(ServiceSettings):
    """Where snapshots go, and how much memory they may keep."""

    storage_uri: str = ""
    """A folder, or an fsspec URL; empty: `storage/` in the data folder."""
    shm_dir: Path | None = None
    """Shared memory that parameter servers on this machine use too; none: a folder in the data folder."""
    node: str = Field(default_factory=platform.node)
    """This machine's name; only its own unfinished snapshots are removed at start."""
    checkpoint_memory_bytes: int = Field(default=4 << 30, ge=0)
    """Memory that copies of stored parts may hold."""
    checkpoint_memory_snapshots: int = Field(default=2, ge=0)
    """Newest snapshots of each job whose parts stay in memory."""
    checkpoint_peers: tuple[str, ...] = ()
    """host:port of other nodes' ckptcaches, of which one holds a copy of each part in its memory. A name that stands
    for several addresses (a headless service of a DaemonSet) is one peer at each; the node itself is passed over."""
    checkpoint_replica_memory_bytes: int = Field(default=4 << 30, ge=0)
    """Memory that copies of other nodes' parts may hold here."""
    checkpoint_replica_bytes_per_s: int = Field(default=256 << 20, ge=0)
    """Rate of copies to a peer; 0: as fast as it goes."""
    checkpoint_keep: int = Field(default=3, ge=1)
    """Committed snapshots kept for a job that does not say how many."""
    checkpoint_max_age_s: float | None = Field(default=None, gt=0)
    """Committed snapshots older than this go, except a job's newest."""
    checkpoint_flush_threads: int = Field(default=2, ge=1, le=64)

    @property
    def storage(self) -> str:
        """The storage's root."""
        return self.storage_uri or str(self.data_dir.absolute() / "storage")

    @property
    def shared_memory(self) -> Path:
        """The shared-memory folder."""
        return self.shm_dir or self.data_dir.absolute() / "shm"
