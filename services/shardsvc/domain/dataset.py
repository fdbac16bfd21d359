"""Registered datasets."""

from dataclasses import dataclass

from recmesh.spec.dataset import DatasetSpec


@dataclass(frozen=True, slots=True)
class Dataset:
    """A specification under a name; revisions count its changes."""

    name: str
    revision: int
    spec: DatasetSpec
    created: float
    """Unix seconds, of this revision."""
    rows: int
    files: int
    size_bytes: int = 0
    tasks: int = 0
    """Task records of one epoch; of all three 0 where an older release has registered it."""
    columns: int = 0

    def same_as(self, spec: DatasetSpec) -> bool:
        """Registering an equal specification again is no change."""
        return self.spec == spec
