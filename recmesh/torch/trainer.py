"""The training loop's torch side: parameters pulled into the module, gradients pushed out of it."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, Violation
from recmesh.serving.apart import Apart, ApartTable
from recmesh.torch.batch import Batch
from recmesh.torch.embedding import EmbeddingCollection, StepLookup
from recmesh.torch.export import export_apart, export_program
from recmesh.torch.optim import by_parameter, rates
from recmesh.trainer.layout import Arena, joined
from recmesh.trainer.session import DenseBlock, EmbeddingTable, Floats, Ints, Job, Step, TableRows

if TYPE_CHECKING:
    from recmesh.data import Batch as Columns

Predictions = Literal["sigmoid", "identity"] | Callable[[Any], Tensor]


def attach(
    job: Job,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    predictions: Predictions = "sigmoid",
) -> "Trainer":
    """Gives the model's parameters to the job's parameter servers, and the job's batches to the model.

    `optimizer` says how the servers update the dense parameters (SGD, Adagrad or Adam; None: the job's
    `training.optimizer`); it is never stepped here. Parameters it does not hold, or that require no grad,
    stay as they are. Tables follow their own `EmbeddingTable.optimizer` or the job. `predictions` turns what
    the model returns into float32 [B] or [B, labels]: `sigmoid` of logits, or as it is, or by a function.
    """
    trainer = Trainer(job, model, optimizer, predictions=predictions)
    job.attach(trainer)
    return trainer


class Trainer:
    """Iterate over it for batches; call `step` once for each."""

    framework = "torch"

    def __init__(
        self, job: Job, model: nn.Module, optimizer: torch.optim.Optimizer | None, *, predictions: Predictions
    ) -> None:
        self.job = job
        self.model = model
        self._optimizer = optimizer
        self._rates = rates(optimizer)
        self._to_predictions = _predictor(predictions)
        self.tables: tuple[EmbeddingTable, ...] = tuple(
            table
            for module in model.modules() if isinstance(module, EmbeddingCollection)
            for table in module.tables
        )
        self._parameters = dict(model.named_parameters())
        self._buffers = {
            name: buffer for name, buffer in model.named_buffers() if buffer.is_floating_point()
        }
        _check_dtypes({**self._parameters, **self._buffers})
        kinds = by_parameter(optimizer)
        self._trained = {
            name for name, parameter in self._parameters.items()
            if parameter.requires_grad and (optimizer is None or id(parameter) in kinds)
        }
        self.dense: tuple[DenseBlock, ...] = tuple(
            DenseBlock(
                name,
                tensor.detach().cpu().numpy().copy(),
                "parameter" if name in self._trained else "statistic",
                kinds.get(id(tensor)) if name in self._trained else None,
            )
            for name, tensor in {**self._parameters, **self._buffers}.items()
        )
        self._device = next(iter(self._parameters.values()), torch.empty(0)).device
        self._step: Step | None = None
        self._lookup: StepLookup | None = None
        self._output: Any = None
        model.register_forward_hook(self._keep_output)

    # ---- training

    def __iter__(self) -> Iterator[Batch]:
        """Batches until the job's data is trained; the module holds the parameters of its batch."""
        self.model.train()
        for step in self.job.session.steps():
            self._load(step.dense)
            self._lookup = self._lookup_of(step.batch, getattr(step, "arenas", None), step.rows, step.index)
            self._step, self._output = step, None
            yield self._batch(step.batch, self._lookup)

    def step(self, loss: Tensor, *, predictions: Tensor | None = None) -> None:
        """Backward and push. `loss` is the mean over the batch's samples.

        It is scaled by batch / nominal batch size, so that each sample counts the same in any batch. What the
        model returned is reported as predictions unless they are given. Parameters and tables that the loss does not
        depend on stay bit for bit as they are, as under torch's own optimizers.
        """
        step, lookup = self._step, self._lookup
        if step is None or lookup is None:
            raise FailedPrecondition("step() belongs once to each batch of the loop")
        self._step = self._lookup = None
        if rates(self._optimizer) != self._rates:
            raise InvalidArgument(
                "a scheduler changed the optimizer's learning rate, which the servers don't see: "
                "set training.lr_schedule in the job instead"
            )
        if not loss.requires_grad and not torch.isfinite(loss):
            step.skip_nan()
            return
        for parameter in self._parameters.values():
            parameter.grad = None
        (loss * (step.batch.size / self.job.batch_size)).backward()
        grads = {name: _gradient(self._parameters[name]) for name in self._trained}
        with torch.no_grad():
            deltas = {name: _delta(buffer, step.dense[name]) for name, buffer in self._buffers.items()}
        made = self._output if predictions is None else predictions
        step.push(
            {**dict.fromkeys(table.name for table in self.tables), **lookup.row_grads()},
            {**dict.fromkeys(step.dense), **grads, **deltas},
            loss=float(loss.detach()),
            predictions=None if made is None else self._as_array(made, step.batch.size),
        )

    # ---- evaluation and export: see ServableModel

    def predict(
        self,
        batch: "Columns",
        rows: Mapping[str, Floats],
        index: Mapping[str, Ints],
        dense: Mapping[str, Floats],
    ) -> Floats:
        """See ServableModel.predict."""
        self.model.eval()
        self._load(dense)
        with torch.no_grad():
            output = self.model(self._batch(batch, self._lookup_of(batch, None, rows, index)))
            made = self._as_array(output, batch.size)
        if made is None:
            raise InvalidArgument("the model's output is no tensor: give attach(..., predictions=function)")
        return made

    def export(
        self,
        directory: Path,
        *,
        tables: Mapping[str, TableRows],
        dense: Mapping[str, Floats],
        metrics: Mapping[str, float],
    ) -> None:
        """See ServableModel.export."""
        self.model.eval()
        self._load(dense)
        export_program(
            self.model,
            directory,
            job=self.job,
            tables=self.tables,
            rows=tables,
            metrics=metrics,
            to_predictions=self._to_predictions,
        )

    def export_apart(
        self,
        directory: Path,
        *,
        job_id: str,
        checkpoints: str,
        tables: Mapping[str, TableRows],
        dense: Mapping[str, Floats],
        metrics: Mapping[str, float],
    ) -> None:
        """See ServableModel.export_apart."""
        self.model.eval()
        self._load(dense)
        named = tuple(ApartTable(table.name, table.dim, tuple(table.features)) for table in self.tables)
        blocks = {block.name: f"model.{block.name}" for block in self.dense}
        export_apart(
            self.model, directory, job=self.job, apart=Apart(job_id, checkpoints, named, blocks),
            tables=self.tables, rows=tables, metrics=metrics, to_predictions=self._to_predictions,
        )

    # ---- inside

    def _lookup_of(
        self,
        batch: "Columns",
        arenas: Mapping[int, Arena] | None,
        rows: Mapping[str, Floats],
        index: Mapping[str, Ints],
    ) -> StepLookup:
        return StepLookup(
            arenas=joined(self.tables, rows) if arenas is None else arenas,
            rows=rows,
            index=index,
            columns=batch.ids,
            features=self.job.id_features,
            device=self._device,
        )

    def _batch(self, columns: "Columns", lookup: StepLookup) -> Batch:
        def tensor(array: Floats) -> Tensor:
            return torch.tensor(array, dtype=torch.float32, device=self._device)

        return Batch(
            size=columns.size,
            dense=tensor(columns.dense),
            labels=tensor(columns.labels),
            weight=None if columns.weight is None else tensor(columns.weight),
            lookup=lookup,
            dense_features=self.job.dense_features,
            kind=columns.kind,
        )

    def _load(self, dense: Mapping[str, Floats]) -> None:
        with torch.no_grad():
            for name, tensor in {**self._parameters, **self._buffers}.items():
                tensor.copy_(torch.from_numpy(dense[name]))

    def _keep_output(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._step is not None:
            self._output = output

    def _as_array(self, output: Any, size: int) -> Floats | None:
        if isinstance(output, Tensor):
            output = output.detach()
        try:
            made = self._to_predictions(output)
        except (TypeError, AttributeError):   # a model may return what only its own loss understands
            return None
        if not isinstance(made, Tensor) or made.shape[:1] != (size,):
            return None
        array: Floats = made.detach().float().cpu().numpy()
        return array.reshape(size) if array.size == size else array


def _gradient(parameter: Tensor) -> Floats | None:
    """None where no gradient reached it."""
    return None if parameter.grad is None else parameter.grad.cpu().numpy()


def _delta(buffer: Tensor, before: Floats) -> Floats | None:
    """None where it is as it was."""
    now: Floats = buffer.cpu().numpy()
    return None if np.array_equal(now, before) else now - before


def _predictor(predictions: Predictions) -> Callable[[Any], Tensor]:
    if predictions == "sigmoid":
        return torch.sigmoid
    if predictions == "identity":
        return lambda output: output
    if callable(predictions):
        chosen: Callable[[Any], Tensor] = predictions
        return chosen
    raise InvalidArgument(f"predictions is sigmoid, identity or a function, not {predictions!r}")


def _check_dtypes(tensors: Mapping[str, Tensor]) -> None:
    wrong = [
        Violation(name, f"is {tensor.dtype}, and the servers hold float32")
        for name, tensor in tensors.items() if tensor.dtype != torch.float32
    ]
    if wrong:
        raise InvalidArgument("the model's parameters can't be trained on the servers", violations=wrong)
