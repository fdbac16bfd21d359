"""The torch module that stands for embedding tables, and the lookup of a training step's rows."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from recmesh.runtime.errors import InvalidArgument
from recmesh.spec.dataset import Feature
from recmesh.torch.batch import Batch, Embeddings, IdKind, Padded
from recmesh.trainer.layout import Arena
from recmesh.trainer.pooling import (
    bag_max_back,
    bag_max_into,
    bag_sum_back,
    bag_sum_into,
    bag_weights,
    pad_back,
    pad_into,
    take_back,
    take_into,
)
from recmesh.trainer.session import EmbeddingTable, Floats, Ints, index_of

if TYPE_CHECKING:
    from recmesh.data import IdColumn


class EmbeddingCollection(nn.Module):
    """Embedding tables, as torchrec names them: `embeddings(batch)["feature"]`.

    It holds no parameters: rows come with each step and their gradients leave with it.
    """

    def __init__(self, tables: Sequence[EmbeddingTable]) -> None:
        super().__init__()
        self.tables = tuple(tables)
        self._home: dict[str, EmbeddingTable] = {}
        for table in self.tables:
            for feature in table.features:
                if feature in self._home:
                    other = self._home[feature].name
                    raise InvalidArgument(f"feature {feature!r} is in tables {other!r} and {table.name!r}")
                self._home[feature] = table

    def forward(self, batch: Batch) -> Embeddings:
        """The batch's embeddings by feature."""
        return Embeddings(batch.lookup, self._home)

    def extra_repr(self) -> str:
        """For print(model)."""
        return ", ".join(f"{table.name}[{table.dim}]" for table in self.tables)


class StepLookup:
    """Embeddings from the rows of one step; backward adds up the gradients of its distinct rows."""

    def __init__(
        self,
        *,
        arenas: Mapping[int, Arena],
        rows: Mapping[str, Floats],
        index: Mapping[str, Ints],
        columns: "Mapping[str, IdColumn]",
        features: Mapping[str, Feature],
        device: Any,
    ) -> None:
        self._arenas, self._rows, self._index = arenas, rows, index
        self._columns, self._features, self._device = columns, features, device
        self._grads: dict[int, Floats] = {}
        self._reached: set[str] = set()
        # What a Function returns requires grad only if an input does; the rows themselves are no tensors.
        self._anchor = torch.empty(0, requires_grad=True)

    def row_grads(self) -> dict[str, Floats]:
        """By table [unique ids, dim]; tables that no gradient reached are left out."""
        return {
            table: grad[first:first + len(self._rows[table])]
            for dim, grad in self._grads.items()
            for table, first in self._arenas[dim].offset.items() if table in self._reached
        }

    def kind(self, feature: str) -> IdKind:
        """See Lookup.kind."""
        return self._features[feature].kind  # type: ignore[return-value]  # dense ones have no table

    def vector(self, table: EmbeddingTable, feature: str) -> Tensor:
        """See Lookup.vector."""
        if self.kind(feature) == "single":
            return self._take([table], self._place(table, feature), (-1, table.dim))
        values = self._arenas[table.dim].values
        index, column = self._place(table, feature), self._columns[feature]
        offsets = np.ascontiguousarray(column.offsets)
        out = np.empty((offsets.size - 1, table.dim), np.float32)
        if table.pooling == "max":
            winner = np.empty(out.shape, np.int64)
            bag_max_into(values, index, offsets, out, winner)
            return self._tensor(out, lambda g: bag_max_back(g, winner, self._grad([table])))
        weights = bag_weights(table.pooling, offsets, column.weights, index.size)
        bag_sum_into(values, index, offsets, weights, out)
        return self._tensor(out, lambda g: bag_sum_back(g, index, offsets, weights, self._grad([table])))

    def padded(self, table: EmbeddingTable, feature: str) -> Padded:
        """See Lookup.padded; L is the longest in the batch, at least 1."""
        index = self._place(table, feature)
        offsets = np.ascontiguousarray(self._columns[feature].offsets)
        lengths = np.diff(offsets)
        longest = max(int(lengths.max(initial=0)), 1)
        out = np.empty((lengths.size, longest, table.dim), np.float32)
        pad_into(self._arenas[table.dim].values, index, offsets, out)
        mask = (np.arange(longest) < lengths[:, None]).astype(np.float32)
        values = self._tensor(out, lambda g: pad_back(g, index, offsets, self._grad([table])))
        return Padded(values, torch.from_numpy(mask).to(self._device))

    def stacked(self, tables: Sequence[EmbeddingTable], features: Sequence[str]) -> Tensor:
        """See Lookup.stacked: one gather, and one scatter on the way back."""
        offset = self._arenas[tables[0].dim].offset
        index = np.empty((len(self._index[features[0]]), len(features)), np.int64)
        for k, (table, feature) in enumerate(zip(tables, features, strict=True)):
            np.add(index_of(self._index, table.name, feature), offset[table.name], out=index[:, k])
        return self._take(tables, index.ravel(), (-1, len(features), tables[0].dim))

    def _place(self, table: EmbeddingTable, feature: str) -> Ints:
        first = self._arenas[table.dim].offset[table.name]
        index = index_of(self._index, table.name, feature)
        return index + first if first else np.ascontiguousarray(index)

    def _take(self, tables: Sequence[EmbeddingTable], index: Ints, shape: tuple[int, ...]) -> Tensor:
        dim = tables[0].dim
        out = np.empty((index.size, dim), np.float32)
        take_into(self._arenas[dim].values, index, out)
        return self._tensor(out, lambda g: take_back(g, index, self._grad(tables))).view(shape)

    def _tensor(self, out: Floats, back: Callable[[Floats], None]) -> Tensor:
        made = _Looked.apply(self._anchor, out, back)
        return made if self._device.type == "cpu" else made.to(self._device)

    def _grad(self, tables: Sequence[EmbeddingTable]) -> Floats:
        """Of the rows of all tables of their dimension; the tables are marked as reached."""
        dim = tables[0].dim
        self._reached.update(table.name for table in tables)
        if dim not in self._grads:
            self._grads[dim] = np.zeros_like(self._arenas[dim].values)
        return self._grads[dim]


class _Looked(torch.autograd.Function):
    """Values that a kernel looked up; `back` takes their gradient to the rows."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, out: Floats, back: Callable[[Floats], None]) -> Tensor:
        """The looked-up values as a tensor that requires grad."""
        ctx.back = back
        return torch.from_numpy(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Adds to the rows' gradients; there is nothing else to return."""
        ctx.back(grads[0].contiguous().numpy())
        return None, None, None
