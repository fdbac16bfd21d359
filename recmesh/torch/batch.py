"""What a torch model gets: a batch of tensors, and embeddings looked up from wherever the rows are."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from recmesh.runtime.errors import InvalidArgument
from recmesh.spec.dataset import SampleKind
from recmesh.trainer.session import EmbeddingTable

IdKind = Literal["single", "bag", "sequence"]


class Padded(NamedTuple):
    """Sequences of embeddings."""

    values: Tensor
    """[B, L, dim]; zero behind each sequence's end."""
    mask: Tensor
    """float32 [B, L]: 1 where there is an id."""


class Lookup(Protocol):
    """Where embeddings come from: a step's rows, or the buffers of an exported model."""

    def vector(self, table: EmbeddingTable, feature: str) -> Tensor:
        """[B, dim] of a single id, or of a pooled bag."""

    def padded(self, table: EmbeddingTable, feature: str) -> Padded:
        """A sequence, or a bag that is not pooled."""

    def stacked(self, tables: Sequence[EmbeddingTable], features: Sequence[str]) -> Tensor:
        """[B, features, dim] of features whose tables have one dimension."""

    def kind(self, feature: str) -> IdKind:
        """As the dataset's specification says."""


@dataclass
class Batch:
    """B samples."""

    size: Any
    """int; symbolic while a model is exported."""
    dense: Tensor
    """float32 [B, dense features], in the order of the specification."""
    labels: Tensor
    """float32 [B, labels]; empty when there is nothing to compare with."""
    weight: Tensor | None
    """float32 [B], if the dataset has sample weights."""
    lookup: Lookup = field(repr=False)
    dense_features: Sequence[str] = ()
    kind: SampleKind = "batch"
    """Of all its samples, as the dataset's sources say."""

    @property
    def label(self) -> Tensor:
        """float32 [B]: the first label."""
        return self.labels[:, 0]

    def column(self, name: str) -> Tensor:
        """float32 [B]: one dense feature."""
        if name not in self.dense_features:
            raise InvalidArgument(f"the data has no dense feature {name!r}")
        return self.dense[:, list(self.dense_features).index(name)]


class Embeddings:
    """The embeddings of a batch, by feature; each is looked up when it is asked for."""

    def __init__(self, lookup: Lookup, home: dict[str, EmbeddingTable]) -> None:
        self._lookup = lookup
        self._home = home

    def __getitem__(self, feature: str) -> Tensor:
        """[B, dim]: of a single id, or of a bag, pooled."""
        table = self._table(feature)
        kind = self._lookup.kind(feature)
        if kind == "sequence" or (kind == "bag" and table.pooling == "none"):
            raise InvalidArgument(f"feature {feature!r} is not pooled: take embeddings.sequence({feature!r})")
        return self._lookup.vector(table, feature)

    def sequence(self, feature: str) -> Padded:
        """Values [B, L, dim] and mask [B, L] of a sequence, or of a bag whose table has pooling `none`."""
        table = self._table(feature)
        if self._lookup.kind(feature) == "single":
            raise InvalidArgument(f"feature {feature!r} has one id per row: take embeddings[{feature!r}]")
        return self._lookup.padded(table, feature)

    @property
    def pooled(self) -> list[str]:
        """The features that `stack` and `cat` take by themselves: all but sequences, in the tables' order."""
        return [
            feature for feature, table in self._home.items()
            if self._lookup.kind(feature) == "single"
            or (self._lookup.kind(feature) == "bag" and table.pooling != "none")
        ]

    def stack(self, features: Sequence[str] | None = None) -> Tensor:
        """[B, features, dim]; their tables must have one dimension. One gather where all have single ids."""
        names = self.pooled if features is None else list(features)
        tables = [self._table(name) for name in names]
        if len({table.dim for table in tables}) != 1:
            raise InvalidArgument(f"stack needs features of one dimension, not {[t.dim for t in tables]}")
        if all(self._lookup.kind(name) == "single" for name in names):
            return self._lookup.stacked(tables, names)
        return torch.stack([self[name] for name in names], dim=1)

    def cat(self, features: Sequence[str] | None = None) -> Tensor:
        """[B, sum of dims], in the order of the features."""
        names = self.pooled if features is None else list(features)
        if len({self._table(name).dim for name in names}) == 1:
            return self.stack(names).flatten(1)
        return torch.cat([self[name] for name in names], dim=1)

    def _table(self, feature: str) -> EmbeddingTable:
        if feature not in self._home:
            raise InvalidArgument(f"no embedding table has the feature {feature!r}")
        return self._home[feature]
