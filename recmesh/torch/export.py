"""A trained model as one torch.export program that needs nothing of recmesh: raw ids in, predictions out.

Each table becomes two buffers, its ids in ascending order and their rows; a lookup is searchsorted, gather
and a mask, so that ids never seen read as zero.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import recmesh
from recmesh.runtime.errors import InvalidArgument
from recmesh.serving.apart import Apart, places_input, rows_input
from recmesh.spec.dataset import Feature
from recmesh.torch.batch import Batch, IdKind, Padded
from recmesh.trainer.card import inputs_of, model_card, write_card
from recmesh.trainer.session import EmbeddingTable, Job, TableRows

PROGRAM = "model.pt2"
_EXAMPLE_ROWS = 3
_EXAMPLE_LENGTH = 4
_EXAMPLE_UNIQUE = 5


def export_program(
    model: nn.Module,
    directory: Path,
    *,
    job: Job,
    tables: Sequence[EmbeddingTable],
    rows: Mapping[str, TableRows],
    metrics: Mapping[str, float],
    to_predictions: Callable[[Any], Tensor],
) -> None:
    """Writes `model.pt2` and `model.json`; the program takes a dictionary of inputs, gives one of outputs."""
    served = ServedModel(model, job, tables, rows, to_predictions).eval()
    example = _example(job.features)
    batch = torch.export.Dim("batch", min=1)
    shapes = {
        name: {0: batch} if tensor.ndim == 1 else {0: batch, 1: torch.export.Dim.DYNAMIC}
        for name, tensor in example.items()
    }
    _save(served, model, example, shapes, directory)
    write_card(
        directory,
        model_card(
            framework="torch",
            data=job.data,
            labels=job.labels,
            tables=tables,
            rows=rows,
            metrics=metrics,
            versions={"recmesh": recmesh.__version__, "torch": str(torch.__version__)},
        ),
    )


def export_apart(
    model: nn.Module,
    directory: Path,
    *,
    job: Job,
    apart: Apart,
    tables: Sequence[EmbeddingTable],
    rows: Mapping[str, TableRows],
    metrics: Mapping[str, float],
    to_predictions: Callable[[Any], Tensor],
) -> None:
    """As `export_program`, but of a program that takes rows where the model takes ids; see recmesh.serving.apart.

    The tables themselves are not written.
    """
    card = model_card(
        framework="torch", data=job.data, labels=job.labels, tables=tables, rows=rows, metrics=metrics,
        versions={"recmesh": recmesh.__version__, "torch": str(torch.__version__)},
    )
    inputs = apart.inputs_of(card["inputs"])
    sizes = {-1: torch.export.Dim("batch", min=1)}
    example, shapes = {}, {}
    rows_inputs = {rows_input(number) for number in range(len(apart.tables))}
    for item in inputs:
        is_rows = item["name"] in rows_inputs    # a feature may be named `rows`, too: `rows.lengths`
        first = _EXAMPLE_UNIQUE if is_rows else _EXAMPLE_ROWS
        rest = [_EXAMPLE_LENGTH if size == -1 else size for size in item["shape"][1:]]
        example[item["name"]] = torch.ones((first, *rest), dtype=getattr(torch, item["dtype"]))
        shapes[item["name"]] = {0: torch.export.Dim.DYNAMIC if is_rows else sizes[-1]} | {
            axis: torch.export.Dim.DYNAMIC for axis, size in enumerate(item["shape"]) if axis and size == -1
        }
    served = ApartModel(model, job, tables, to_predictions).eval()
    _save(served, model, example, shapes, directory)
    write_card(directory, {**card, "apart": apart.document()})


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """Inside, no parameter requires grad: a served model has nothing to differentiate."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in trained:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


def _save(
    served: nn.Module, model: nn.Module, example: dict[str, Tensor], shapes: dict[str, Any], directory: Path
) -> None:
    with _frozen(model):
        try:
            program = torch.export.export(served, (example,), dynamic_shapes=(shapes,), strict=False)
        except Exception as error:
            why = str(error).splitlines()[0] if str(error) else repr(error)
            raise InvalidArgument(f"torch.export can't take the model as it is: {why}") from error
        directory.mkdir(parents=True, exist_ok=True)
        torch.export.save(program, str(directory / PROGRAM))   # inside: it holds the model's own tensors


class ServedModel(nn.Module):
    """The model behind its inputs' names, with its rows as buffers."""

    def __init__(
        self,
        model: nn.Module,
        job: Job,
        tables: Sequence[EmbeddingTable],
        rows: Mapping[str, TableRows],
        to_predictions: Callable[[Any], Tensor],
    ) -> None:
        super().__init__()
        self.model = model
        self._features = {feature.name: feature for feature in job.features}
        self._dense, self._labels = job.dense_features, len(job.labels)
        self._to_predictions = to_predictions
        self._number = {table.name: k for k, table in enumerate(tables)}
        for k, table in enumerate(tables):
            held = rows[table.name]
            # One row at least, of an id that no data has: gather needs somewhere to point at.
            ids, values = held.ids, held.values
            if not len(ids):
                ids, values = np.array([np.iinfo(np.int64).max]), np.zeros((1, table.dim), np.float32)
            self.register_buffer(f"ids_{k}", torch.from_numpy(np.array(ids, np.int64)))
            self.register_buffer(f"rows_{k}", torch.from_numpy(np.array(values, np.float32)))

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Inputs by name as in model.json; `predictions` float32 [B] or [B, labels]."""
        first = next(iter(inputs.values()))
        size = first.shape[0]
        columns = [inputs[name] for name in self._dense]
        dense = torch.stack(columns, dim=1) if columns else first.new_zeros((size, 0), dtype=torch.float32)
        batch = Batch(
            size=size,
            dense=dense,
            labels=first.new_zeros((size, 0), dtype=torch.float32),
            weight=None,
            lookup=_BufferLookup(self, inputs),
            dense_features=self._dense,
        )
        made = self._to_predictions(self.model(batch))
        return {"predictions": made.reshape(-1) if self._labels == 1 else made}

    def look_up(self, table: EmbeddingTable, feature: str, inputs: dict[str, Tensor]) -> Tensor:
        """Rows of a feature's ids, of any shape; zero where there is none."""
        ids = inputs[feature]
        k = self._number[table.name]
        known, rows = getattr(self, f"ids_{k}"), getattr(self, f"rows_{k}")
        place = torch.searchsorted(known, ids).clamp(max=known.shape[0] - 1)
        return torch.where((known[place] == ids).unsqueeze(-1), rows[place], 0.0)

    def feature(self, name: str) -> Feature:
        """As the dataset's specification says."""
        return self._features[name]


class ApartModel(ServedModel):
    """The same, with the rows of a request among its inputs."""

    def __init__(
        self, model: nn.Module, job: Job, tables: Sequence[EmbeddingTable], to_predictions: Callable[[Any], Tensor]
    ) -> None:
        super().__init__(model, job, (), {}, to_predictions)
        self._number = {table.name: k for k, table in enumerate(tables)}

    def look_up(self, table: EmbeddingTable, feature: str, inputs: dict[str, Tensor]) -> Tensor:
        """Rows at the places that the caller has found."""
        k = self._number[table.name]
        return inputs[rows_input(k)][inputs[places_input(k, feature)]]


class _BufferLookup:
    """Lookup in an exported model's buffers; plain torch operators only."""

    def __init__(self, served: ServedModel, inputs: dict[str, Tensor]) -> None:
        self._served, self._inputs = served, inputs

    def kind(self, feature: str) -> IdKind:
        return self._served.feature(feature).kind  # type: ignore[return-value]  # dense ones have no table

    def vector(self, table: EmbeddingTable, feature: str) -> Tensor:
        if self.kind(feature) == "single":
            return self._served.look_up(table, feature, self._inputs)
        values, mask = self.padded(table, feature)
        if table.pooling == "max":
            highest = torch.where(mask.unsqueeze(-1) > 0, values, float("-inf")).amax(dim=1)
            return torch.where(mask.amax(dim=1, keepdim=True) > 0, highest, 0.0)
        weighted = self._served.feature(feature).weights
        weights = mask * self._inputs[f"{feature}.weights"] if weighted else mask
        total = (values * weights.unsqueeze(-1)).sum(dim=1)
        if table.pooling == "sum":
            return total
        share = weights.sum(dim=1, keepdim=True)
        return torch.where(share != 0, total / torch.where(share != 0, share, 1.0), 0.0)

    def padded(self, table: EmbeddingTable, feature: str) -> Padded:
        values, lengths = self._served.look_up(table, feature, self._inputs), self._inputs[f"{feature}.lengths"]
        mask = (torch.arange(values.shape[1], device=values.device) < lengths.unsqueeze(1)).to(torch.float32)
        return Padded(values * mask.unsqueeze(-1), mask)

    def stacked(self, tables: Sequence[EmbeddingTable], features: Sequence[str]) -> Tensor:
        return torch.stack(
            [self.vector(table, feature) for table, feature in zip(tables, features, strict=True)], dim=1
        )


def _example(features: Sequence[Feature]) -> dict[str, Tensor]:
    made: dict[str, Tensor] = {}
    for feature in features:
        for item in inputs_of(feature):
            shape = (_EXAMPLE_ROWS,) if len(item["shape"]) == 1 else (_EXAMPLE_ROWS, _EXAMPLE_LENGTH)
            made[item["name"]] = torch.ones(shape, dtype=getattr(torch, item["dtype"]))
    return made
