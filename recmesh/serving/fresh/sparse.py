"""Rows of a model that follows its job: raw ids in, its program's inputs out. The program may be in another process."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recmesh.serving.apart import LEAST_ROWS, Apart, places_input, rows_input
from recmesh.serving.card import ModelCard
from recmesh.serving.fresh.follower import Follower, Proposed, alone
from recmesh.serving.fresh.lookup import Lookup
from recmesh.serving.fresh.version import Version
from recmesh.serving.programs import Arrays
from recmesh.serving.settings import ServingSettings

MOST_ASKED = 8


class Sparse:
    """Of one model in one process. `fed` is called by one thread, all else by any."""

    def __init__(self, card: ModelCard, apart: Apart, follower: Follower, lookup: Lookup) -> None:
        self.follower, self._apart, self._lookup = follower, apart, lookup
        self.asked = threading.BoundedSemaphore(MOST_ASKED)
        """For those who may ask at a time how it is, or tell it which version to serve."""
        self._lengths = {spec.name for spec in card.inputs if spec.kind == "lengths"}
        self._passed = [
            spec.name for spec in card.inputs
            if all(spec.name not in table.features for table in apart.tables)
        ]

    @property
    def version(self) -> Version:
        """The one that serves."""
        return self.follower.version

    def fed(self, version: Version, inputs: Arrays) -> Arrays:
        """The program's inputs, from the model's; NotFound where a table's policy refuses ids without a row."""
        fed = {name: inputs[name] for name in self._passed}
        for number, table in enumerate(self._apart.tables):
            columns = {feature: self._column(inputs, feature) for feature in table.features}
            ids = np.concatenate([column[mask] for column, mask in columns.values()])
            unique, places = np.unique(ids, return_inverse=True)
            rows = np.zeros((max(LEAST_ROWS, len(unique)), table.dim), np.float32)
            rows[: len(unique)] = self._lookup.rows(version, table.name, unique)
            fed[rows_input(number)] = rows
            begin = 0
            for feature, (column, mask) in columns.items():
                at = np.zeros(column.shape, np.int64)
                end = begin + int(mask.sum())
                at[mask] = places.reshape(-1)[begin:end]
                fed[places_input(number, feature)] = at
                begin = end
        return fed

    def parameters(self, version: Version) -> Mapping[str, NDArray[np.float32]]:
        """The version's dense blocks by the names of the program's parameters that hold them."""
        return {name: version.dense[block] for block, name in self._apart.dense.items()}

    def begin(self, proposed: Proposed = alone) -> None:
        """It is warm, and serves from now on: follow, count, and refuse what a policy says is to be refused."""
        self._lookup.begin()
        self.follower.start(proposed)

    def status(self) -> dict[str, Any]:
        """Of the version and of the tiers."""
        return {**self.follower.status(), **self._lookup.status()}

    def close(self) -> None:
        """End what runs in the background."""
        self.follower.stop()
        self._lookup.close()

    def _column(self, inputs: Arrays, feature: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """A feature's ids, and which of them there are: what stands behind the end does not matter."""
        column = inputs[feature]
        name = f"{feature}.lengths"
        if name not in self._lengths or column.ndim < 2:
            return column, np.ones(column.shape, np.bool_)
        return column, np.arange(column.shape[1]) < inputs[name][:, None]


def open_sparse(folder: Path, card: ModelCard, apart: Apart, settings: ServingSettings, *, log: Any) -> Sparse:
    """The rows of a model's folder, at their newest version; they follow once they have begun. DataLoss: damaged."""
    means = [table.name for table in apart.tables if settings.embeddings.miss_of(table.name).kind == "mean"]
    follower = Follower(folder, apart, settings.freshness, log=log, means=means)
    dims: Mapping[str, int] = {table.name: table.dim for table in apart.tables}
    return Sparse(card, apart, follower, Lookup(settings.embeddings, dims=dims, name=apart.job_id))
