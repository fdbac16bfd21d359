"""What both halves of a move need of the server that they are part of, and how rows of a slot leave it."""

import logging
import threading
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from recmesh.formats import SLOTS, SlotMask
from recmesh.trainer.ps.latch import Latch
from recmesh.trainer.ps.ledger import Books
from recmesh.trainer.ps.messages import Declaration
from recmesh.trainer.ps.model import Model
from recmesh.trainer.ps.moves.cargo import Cargo, TableCargo
from recmesh.trainer.ps.precedence import Precedence

log = logging.getLogger(__name__)

NO_SLOTS: SlotMask = np.zeros(SLOTS, np.bool_)
PIECE_IDS = 16_384
"""Rows that are read, sent or removed in one go."""


class Home(Protocol):
    """A parameter server's state. `model` and `books` change as a whole with every generation."""

    books: Books
    model: Model
    latch: Latch
    precedence: Precedence

    def prepare(self, gen: int, content: Declaration) -> None:
        """Declare the model as another server has it, without the values of any chunk."""


def read_changes(model: Model, ids: dict[int, NDArray[np.int64]], chunks: list[tuple[int, int]]) -> list[Cargo]:
    """The rows and chunks as they are now, in pieces; ids without a row were removed."""
    pieces: list[Cargo] = []
    for table, changed in ids.items():
        for lo in range(0, changed.size, PIECE_IDS):
            asked = changed[lo:lo + PIECE_IDS]
            rows = model.read_rows(table, asked)
            removed = asked if not len(rows) else asked[~np.isin(asked, rows.ids)]
            pieces.append(Cargo([TableCargo(table, rows, removed)]))
    records = [model.read_chunk(block, chunk) for block, chunk in chunks]
    if records:
        pieces.append(Cargo(chunks=records))
    return pieces


def joined(pieces: list[Cargo]) -> Cargo:
    """Several as one."""
    return Cargo([table for piece in pieces for table in piece.tables],
                 [chunk for piece in pieces for chunk in piece.chunks])


def take_in(model: Model, cargo: Cargo, *, slots: SlotMask) -> None:
    """Replace what the store has of these rows and chunks; InvalidArgument when one is not of these slots."""
    for table in cargo.tables:
        for ids in (table.removed, table.rows.ids):
            model.check_rows_within(table.table, ids, slots)
        model.remove_rows(table.table, table.removed)
        if len(table.rows):
            model.upsert_rows(table.table, table.rows)
    for record in cargo.chunks:
        model.check_chunk_within(record, slots)
        model.upsert_chunk(record)


class Clearing(threading.Thread):
    """Removes the rows and chunks of slots that are not owned here, in the background."""

    def __init__(self, model: Model, slots: SlotMask, *, done: Callable[[], None]) -> None:
        super().__init__(name="clear-slots", daemon=True)
        self.left, self.rows = slots, 0
        """Slots whose rows are not all gone."""
        self._done = done
        self._model, self._stopped = model, threading.Event()

    def run(self) -> None:
        """Until nothing is left, or the model is dropped with its generation."""
        model, slots = self._model, self.left
        for table in range(len(model.content.tables)):
            for block in model.scan_rows(table, slots):
                if self._stopped.is_set():
                    return
                self.rows += model.remove_rows(table, block.ids)
        for number in range(len(model.content.dense)):
            for chunk in np.flatnonzero(slots[model.chunk_slots(number)]):
                model.remove_chunk(number, int(chunk))
        model.store.forget_evicted(slots)
        self.left = NO_SLOTS
        self._done()
        log.info("%d rows of slots that are another server's are freed", self.rows)

    def stop(self) -> None:
        """The model is dropped whole."""
        self._stopped.set()
        self.join()
