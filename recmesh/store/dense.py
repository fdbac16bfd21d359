"""Dense blocks in chunks, each placed, updated and copied on its own."""

from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from recmesh.formats import CHUNK, chunk_count
from recmesh.runtime.errors import NotFound
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

    def take_image(self) -> tuple[NDArray[np.float32], int]:
        """Cell and updates at the mark, once; nothing is saved any more."""
        image = self.image or (self.cell.copy(), self.updates)
        self.marked, self.image = False, None
        return image


class DenseBlock:
    """The chunks of one block that live here. Not thread-safe: the store serialises."""

    def __init__(self, schema: DenseSchema) -> None:
        schema.check()
        self.schema = schema
        self.chunks: dict[int, Chunk] = {}
        self._departed: list[tuple[int, Chunk]] = []     # removed, but a snapshot still has to copy them
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
        """A chunk as it was saved, over the one there is."""
        cell = np.concatenate((record.values, record.state), dtype=np.float32)
        self.remove(record.chunk)
        self.chunks[record.chunk] = Chunk(cell, length=len(record.values), updates=record.updates,
                                          changed=changed)

    def read(self, chunk: int, *, number: int) -> DenseRecord:
        """A chunk as a snapshot would hold it, of the block with this number; NotFound when it is not here."""
        if chunk not in self.chunks:
            raise NotFound(f"chunk {chunk} of {self.schema.name!r} is not here")
        source = self.chunks[chunk]
        cell = source.cell.copy()
        return DenseRecord(number, chunk, cell[:source.length], cell[source.length:], source.updates)

    def remove(self, chunk: int) -> bool:
        """The chunk is gone, but from a snapshot that still has to copy it; whether it was there."""
        source = self.chunks.pop(chunk, None)
        if source is not None and source.marked:
            self._departed.append((chunk, source))
        return source is not None

    def mark(self) -> None:
        """From here on, the first change of each chunk keeps it as it was."""
        for cell in self.chunks.values():
            cell.marked = True

    def unmark(self) -> None:
        """The snapshot is copied, or given up."""
        for cell in self.chunks.values():
            cell.marked, cell.image = False, None
        self._departed.clear()

    def marked(self) -> list[tuple[int, Chunk]]:
        """The chunks at the mark that are still to be copied, ascending."""
        there = [(chunk, cell) for chunk, cell in (*self.chunks.items(), *self._departed) if cell.marked]
        return sorted(there, key=itemgetter(0))

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
        return sum(chunk.cell.nbytes for chunk in list(self.chunks.values()))
