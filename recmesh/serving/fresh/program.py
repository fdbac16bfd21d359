"""A program and its tables as one `Program`: raw ids in, predictions out; each answer is of one version."""

from pathlib import Path
from typing import Any

from recmesh.serving.apart import Apart
from recmesh.serving.card import ModelCard
from recmesh.serving.fresh.sparse import Sparse, open_sparse
from recmesh.serving.fresh.version import Version
from recmesh.serving.programs import Arrays, Tunable
from recmesh.serving.settings import ServingSettings


class FreshProgram:
    """Called by one thread, as every Program; a call takes the version that is installed when it begins."""

    def __init__(self, inner: Tunable, sparse: Sparse) -> None:
        self._inner = inner
        self.sparse = sparse
        self._loaded: Version | None = None
        self.answered = 0
        """The version of the last answer; for the thread that called."""

    def run(self, inputs: Arrays) -> Arrays:
        """Outputs by name."""
        version = self.sparse.version
        fed = self.sparse.fed(version, inputs)
        if self._loaded is not version:
            placed = self._inner.placed(self.sparse.parameters(version))
            self._loaded = None                  # should it raise in the middle
            self._inner.use(placed)
            self._loaded = version
        made = self._inner.run(fed)
        self.answered = version.number
        return made


def open_fresh(
    inner: Tunable, folder: Path, card: ModelCard, apart: Apart, settings: ServingSettings, *, log: Any
) -> FreshProgram:
    """The model of a folder, at its newest version; it follows once its rows have begun. DataLoss: damaged tables."""
    return FreshProgram(inner, open_sparse(folder, card, apart, settings, log=log))
