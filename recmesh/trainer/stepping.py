"""One step, shared by worker and local mode: rows in, gradients out, checked and clipped."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

import numpy as np

from recmesh.runtime.errors import FailedPrecondition, InvalidArgument
from recmesh.spec.job import NanPolicy
from recmesh.trainer.layout import Arena, DenseLayout, Prepared
from recmesh.trainer.ports import Declared, TableDeclaration
from recmesh.trainer.session import Floats, Ints

if TYPE_CHECKING:
    from recmesh.data import Batch


class StepMistake(InvalidArgument):
    """The model's code used a step wrongly, or its numbers went bad for too long."""


@dataclass(slots=True)
class Gradients:
    """What one batch pushes: by table number [unique ids, dim], and all dense blocks flat."""

    rows: list[Floats | None]
    """None: nothing of this table is pushed."""
    dense: Floats
    still: frozenset[int] = frozenset()
    """Numbers of the blocks of which nothing is pushed."""


class StepListener(Protocol):
    """Who hears what a step brought, for progress and metrics."""

    def trained(self, *, samples: int, loss: float, labels: Floats, predictions: Floats | None) -> None:
        """A batch was computed."""

    def skipped(self, samples: int) -> None:
        """A batch's numbers were not finite."""


@dataclass
class NanGuard:
    """Counts skipped batches and enforces `training.nan`, where this process is the whole job.

    In a mesh the count is the job's: jobmaster adds up what all workers report, and decides.
    """

    policy: NanPolicy
    is_alone: bool = True
    skipped: int = 0

    def skip(self) -> None:
        """StepMistake when the policy allows no (more) skipping."""
        self.skipped += 1
        if not self.is_alone:
            return
        if self.policy.action == "fail":
            message = "the loss or its gradients are not finite (training.nan.action is fail)"
            raise StepMistake(message, reason="NAN")
        if self.skipped > self.policy.limit:
            raise StepMistake(
                f"the loss or its gradients were not finite in {self.skipped} batches "
                f"(training.nan.limit is {self.policy.limit})",
                reason="NAN",
            )


@dataclass
class LiveStep:
    """A Step whose push hands the checked gradients to `finish`."""

    prepared: Prepared
    declared: Declared
    layout: DenseLayout
    arenas: dict[int, Arena]
    """By dimension: the rows of all its tables end to end; `rows` are views of them."""
    rows: dict[str, Floats]
    flat: Floats
    """All dense blocks end to end, in the order of their declaration; `dense` are views of it."""
    dense: dict[str, Floats]
    finish: Callable[[Gradients], None]
    listener: StepListener
    nan: NanGuard
    clip_norm: float | None
    done: bool = False
    begun: float = field(default_factory=perf_counter)
    compute_s: float = 0.0

    @property
    def batch(self) -> "Batch":
        """The samples."""
        return self.prepared.batch

    @property
    def index(self) -> Mapping[str, Ints]:
        """By feature: each value's row in its table's `rows`."""
        return self.prepared.index

    def push(
        self,
        row_grads: Mapping[str, Floats | None],
        dense_grads: Mapping[str, Floats | None],
        *,
        loss: float,
        predictions: Floats | None = None,
    ) -> None:
        """See Step.push; StepMistake names a gradient of the wrong name or shape."""
        still = frozenset(
            number for number, block in enumerate(self.declared.dense) if dense_grads.get(block.name, 0) is None
        )
        grads = Gradients(self._row_grads(row_grads), self._dense_grads(dense_grads), still=still)
        if not np.isfinite(loss) or not self._clip(grads):
            self._skip(grads.rows)
            return
        self._end(grads)
        self.listener.trained(
            samples=self.batch.size, loss=float(loss), labels=self.batch.labels, predictions=predictions
        )

    def skip_nan(self) -> None:
        """See Step.skip_nan."""
        self._skip(self._row_grads({}))

    def pass_over(self) -> None:
        """A batch without rows, as none of them could be read: its positions are done with, and nothing changes."""
        self._end(self._standing([None] * len(self.declared.tables)))

    def _standing(self, rows: list[Floats | None]) -> Gradients:
        """Of no dense block."""
        return Gradients(rows, self.layout.flatten({}), still=frozenset(range(len(self.declared.dense))))

    def _skip(self, rows: Iterable[Floats | None]) -> None:
        """Its ids have appeared, whatever its numbers: their gradients are zero (PROTOCOL: content, not values)."""
        self.nan.skip()
        self._end(self._standing([None if part is None else np.zeros_like(part) for part in rows]))
        self.listener.skipped(self.batch.size)

    def _end(self, grads: Gradients) -> None:
        if self.done:
            raise FailedPrecondition("this step was pushed before; a batch counts once")
        self.done = True
        self.compute_s = perf_counter() - self.begun
        self.finish(grads)

    def _unique(self) -> Iterable[tuple[Ints, TableDeclaration]]:
        return zip(self.prepared.unique, self.declared.tables, strict=True)

    def _row_grads(self, row_grads: Mapping[str, Floats | None]) -> list[Floats | None]:
        unknown = set(row_grads) - set(self.rows)
        if unknown:
            raise StepMistake(f"gradients for tables that were never declared: {', '.join(sorted(unknown))}")
        grads: list[Floats | None] = []
        for ids, table in self._unique():
            if table.name not in row_grads:
                grads.append(np.zeros((ids.size, table.dim), np.float32))
                continue
            grad = row_grads[table.name]
            if grad is None:
                grads.append(None)
                continue
            grad = np.ascontiguousarray(grad, np.float32)
            if grad.shape != (ids.size, table.dim):
                raise StepMistake(f"table {table.name}: gradient {grad.shape}, not {(ids.size, table.dim)}")
            grads.append(grad)
        return grads

    def _dense_grads(self, dense_grads: Mapping[str, Floats | None]) -> Floats:
        unknown = set(dense_grads) - set(self.dense)
        if unknown:
            raise StepMistake(f"gradients for blocks that were never declared: {', '.join(sorted(unknown))}")
        for name, grad in dense_grads.items():
            if grad is not None and np.shape(grad) != self.dense[name].shape:
                raise StepMistake(f"block {name}: gradient {np.shape(grad)}, not {self.dense[name].shape}")
        return self.layout.flatten(dense_grads)

    def _clip(self, grads: Gradients) -> bool:
        """Scales to `clip_norm` in place; False when a number is not finite. Statistics are never scaled."""
        parameters = [
            view for block, view in zip(
                self.declared.dense, self.layout.views(grads.dense).values(), strict=True
            ) if block.optimizer is not None
        ]
        rows = [part for part in grads.rows if part is not None]
        total = sum(float(np.vdot(part, part)) for part in [*rows, *parameters])
        if not np.isfinite(total) or len(parameters) < len(self.declared.dense):
            if not all(bool(np.isfinite(part).all()) for part in [*rows, grads.dense]):
                return False
        if self.clip_norm is None:
            return True
        norm = float(np.sqrt(total))
        if norm > self.clip_norm:
            for k, part in enumerate(grads.rows):
                grads.rows[k] = None if part is None else part * np.float32(self.clip_norm / norm)
            for part in parameters:
                part *= np.float32(self.clip_norm / norm)
        return True
