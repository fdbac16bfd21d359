"""Dense blocks in chunks, each placed, updated and copied on its own."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recmesh.formats import CHUNK, chunk_count
from recmesh.store import kernels
from recmesh.store.schema import OPTIMIZERS, DenseSchema


@dataclass(frozen=True, slots=True)
class DenseRecord:
    """A chunk as a snapshot holds it."""

    block: int
    chunk: int
    values: NDArray[np.float32]
    state: NDArray[np.float32]
    updates: int


class Chunk:
    """At most CHUNK values of a block; optimizer state lies behind them in `cell`."""

    __slots__ = ("cell", "changed", "image", "length", "marked", "updates")

    def __init__(self, cell: NDArray[np.float32], *, length: int, updates: int, changed: int) -> None:
        self.cell, self.length, self.updates, self.changed = cell, length, updates, changed
        self.marked = False
        self.image: tuple[NDArray[np.float32], int] | None = None

    @property
    def values(self) -> NDArray[np.float32]:
        """The values, in place."""
        return self.cell[:self.length]

    def save(self) -> None:
        """Keep what a snapshot still has to copy, before it changes."""
        if self.marked and self.image is None:
            self.image = (self.cell.copy(), self.updates)


class DenseBlock:
    """The chunks of one block that live here. Not thread-safe: the store serialises."""

    def __init__(self, schema: DenseSchema) -> None:
        schema.check()
        self.schema = schema
        self.chunks: dict[int, Chunk] = {}
        self._bias = schema.optimizer.bias()

    def use(self, schema: DenseSchema) -> None:
        """Go on with other hyperparameters; name, shape and state are as before."""
        self.schema, self._bias = schema, schema.optimizer.bias()

    def length(self, chunk: int) -> int:
        """Values in a chunk; 0 beyond the last."""
        return max(0, min(CHUNK, self.schema.size - chunk * CHUNK))

    @property
    def count(self) -> int:
        """Chunks of the whole block, wherever they live."""
        return chunk_count(self.schema.size)

    def create(self, chunk: int, values: NDArray[np.float32], *, changed: int) -> None:
        """A chunk that was never updated."""
        cell = np.empty(len(values) + self.schema.optimizer.state_width(len(values)), np.float32)
        cell[:len(values)] = values
        kernels.fill_dense_state(cell[len(values):], OPTIMIZERS[self.schema.optimizer.kind],
                                 self.schema.optimizer.hyper(0))
        self.chunks[chunk] = Chunk(cell, length=len(values), updates=0, changed=changed)

    def load(self, record: DenseRecord, *, changed: int) -> None:
        """A chunk as it was saved."""
        cell = np.concatenate((record.values, record.state), dtype=np.float32)
        self.chunks[record.chunk] = Chunk(cell, length=len(record.values), updates=record.updates,
                                          changed=changed)

    def apply(self, chunk: int, grad: NDArray[np.float32], *, step: int, changed: int) -> None:
        """One optimizer step on a chunk; `step` is the group's before it."""
        target, optimizer = self.chunks[chunk], self.schema.optimizer
        target.save()
        target.updates += 1
        target.changed = changed
        kernels.apply_dense(OPTIMIZERS[optimizer.kind], target.cell, target.length, grad, target.updates,
                            optimizer.hyper(step), self._bias)

    @property
    def memory_bytes(self) -> int:
        """In values and state."""
        return sum(chunk.cell.nbytes for chunk in self.chunks.values())
