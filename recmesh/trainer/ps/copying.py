"""The background half of a snapshot: the marked state, block by block, into one file of shared memory."""

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from recmesh.formats import slots_of
from recmesh.formats.snapshot.document import (
    GroupDocument,
    PartDocument,
    TableFile,
    dense_file_name,
    removed_file_name,
    table_file_name,
)
from recmesh.formats.snapshot.rows import (
    DenseChunk,
    RowColumns,
    record_batch,
    row_schema,
    write_removed,
    write_rows,
)
from recmesh.formats.snapshot.writing import Container, PlacedFile, arrow_sink
from recmesh.runtime.gates import gate
from recmesh.runtime.priority import step_back
from recmesh.store import DenseRecord, RowBlock
from recmesh.store.schema import dense_to_json, table_to_json
from recmesh.trainer.ps.baseline import Changes
from recmesh.trainer.ps.ledger import Cut
from recmesh.trainer.ps.model import Model

log = logging.getLogger(__name__)

_NICE = 5
"""Of the thread that hashes and writes: nobody waits for it, and pushes need the processor."""
_BLOCKS_AHEAD = 4
_WAIT_S = 0.1


@dataclass(frozen=True, slots=True)
class Order:
    """Which snapshot of what."""

    job_id: str
    gen: int
    snapshot: int
    ps: int
    map_version: int
    cuts: Sequence[Cut]
    changes: Changes
    """All rows, or those that differ from an earlier snapshot. Dense chunks are written whole in any case: every
    batch changes all of them."""


@dataclass(frozen=True, slots=True)
class Written:
    """A part in one file of memory that its receiver may take over."""

    order: Order
    path: Path
    size_bytes: int
    files: tuple[PlacedFile, ...]
    document: str


class Cancelled(Exception):
    """The snapshot will not be committed."""


Deliver = Callable[[Written, threading.Event], bool]
"""Hands a part over; True when the receiver owns the file now. The event says that nobody wants it more."""

GiveUp = Callable[[Order, str, threading.Event], None]
"""Says that there will be no part, and why; until then everybody waits for it. The event is Deliver's."""


class _Reader(threading.Thread):
    """Copies the marked rows out of the store, in order of tables, a few blocks ahead of who writes them.

    It holds the store's mutex at times, so it runs at the priority of pushes: a thread that is held up with the
    mutex in its hands would hold them up.
    """

    def __init__(self, model: Model, begun: threading.Event) -> None:
        super().__init__(name="snapshot-reader", daemon=True)
        self._model, self._begun, self._stopped = model, begun, threading.Event()
        self._blocks: queue.Queue[RowBlock | BaseException | None] = queue.Queue(_BLOCKS_AHEAD)

    def run(self) -> None:
        """Each table's blocks, then None."""
        self._begun.wait()
        try:
            for number in range(len(self._model.content.tables)):
                if self._stopped.is_set():
                    return
                for block in self._model.store.copy_rows(self._model.store_table(number)):
                    if not self._put(block):
                        return
                self._put(None)
        except Exception as error:
            self._put(error)

    def _put(self, item: RowBlock | BaseException | None) -> bool:
        while not self._stopped.is_set():
            try:
                self._blocks.put(item, timeout=_WAIT_S)
                return True
            except queue.Full:
                continue
        return False

    def rows(self, cancelled: threading.Event) -> Iterator[RowBlock]:
        """The blocks of the next table; Cancelled when the event is set."""
        while True:
            if cancelled.is_set():
                raise Cancelled
            try:
                item = self._blocks.get(timeout=_WAIT_S)
            except queue.Empty:
                continue
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item

    def stop(self) -> None:
        """Returns when it does not touch the store any more."""
        self._stopped.set()
        self.join()


class Copy(threading.Thread):
    """Writes and delivers one part, then ends the copy-on-write. `cancel()` makes it stop soon.

    Threads take a while to start on a busy machine, so it is started before the mark, and `begin` is called
    right after it.
    """

    def __init__(self, model: Model, *, snapshot: int, path: Path, deliver: Deliver, give_up: GiveUp) -> None:
        super().__init__(name=f"snapshot-{snapshot}", daemon=True)
        self.snapshot, self._model, self._path = snapshot, model, path
        self._deliver, self._give_up = deliver, give_up
        self._order: Order | None = None
        self.cancelled, self._begun = threading.Event(), threading.Event()
        self._reader = _Reader(model, self._begun)
        self._unmarked = threading.Event()
        self.error: BaseException | None = None

    def start(self) -> None:
        """The reader first: a thread inherits the priority of the one that starts it."""
        self._reader.start()
        super().start()

    def begin(self, order: Order) -> None:
        """The store is marked for this order."""
        self._order = order
        self._begun.set()

    def run(self) -> None:
        """Write, stop saving pre-images, deliver; or say that there will be no part."""
        step_back(_NICE)
        self._begun.wait()
        if self._order is None:              # cancelled before the mark
            self._reader.stop()
            self._unmarked.set()
            return
        try:
            self._copy(self._order)
        except Cancelled:
            log.info("snapshot %d was given up", self.snapshot)
        except Exception as error:
            self.error = error
            log.exception("snapshot %d failed", self.snapshot)
            self._give_up(self._order, f"PS {self._order.ps} has no part of it: {error}", self.cancelled)

    def _copy(self, order: Order) -> None:
        try:
            container = Container(self._path)
            try:
                written = self._write(container, order)
            except BaseException:
                container.discard()
                raise
        finally:
            self._reader.stop()
            self._model.store.unmark()
            self._unmarked.set()
        gate("ps.part", f"snapshot {order.snapshot}, {written.size_bytes} bytes")
        with container:
            if self._deliver(written, self.cancelled):
                container.keep()

    @property
    def is_copying(self) -> bool:
        """It still reads the store; afterwards it only delivers."""
        return not self._unmarked.is_set()

    def cancel(self) -> None:
        """Stop, and wait until the store is not marked any more; a delivery under way may last longer."""
        self.cancelled.set()
        self._begun.set()
        self._unmarked.wait()

    def _write(self, container: Container, order: Order) -> Written:
        content = self._model.content
        tables: list[list[TableFile]] = [[] for _ in order.cuts]
        for number in range(len(content.tables)):
            for group, file in enumerate(self._write_table(container, order, number)):
                tables[group].append(self._with_removed(container, order, group, file))
        records = [record for number in range(len(content.dense)) for record in self._chunks(number)]
        groups = []
        for group, cut in enumerate(order.cuts):
            name = dense_file_name(group)
            chunks = container.write_dense(name, [chunk for slot, chunk in records if cut.slots[slot]])
            evicted = self._model.store.evicted_at_mark * cut.slots
            groups.append(GroupDocument(
                group, cut.slots, cut.ledger, cut.step, tuple(tables[group]), name, chunks,
                {slot: int(evicted[slot]) for slot in np.flatnonzero(evicted).tolist()}))
        document = PartDocument(
            order.job_id, order.gen, order.snapshot, order.ps, order.map_version, tuple(groups),
            tuple({**table_to_json(table), "state_width": table.state_width} for table in content.tables),
            tuple(dense_to_json(block) for block in content.dense),
            tuple(file.document for file in container.files), order.changes.base)
        return Written(order, self._path, container.size_bytes, tuple(container.files), document.to_json())

    def _write_table(self, container: Container, order: Order, number: int) -> list[TableFile]:
        """One file per group, in one pass over the rows: a block can be copied only once.

        The first group's file is written in place, the others' beside it until the pass is over.
        """
        schema = self._model.content.tables[number]
        arrow = row_schema(schema.name, schema.dim, schema.state_width)
        names = [table_file_name(group, number) for group in range(len(order.cuts))]
        blocks = self._rows(order, number)
        if len(names) == 1:
            slots = order.cuts[0].slots
            if not slots.all():                # rows of other slots may be on their way in or out
                blocks = (block.select(slots[slots_of(block.ids, schema.name)]) for block in blocks)
            with container.section(names[0]) as section:
                rows = write_rows(arrow_sink(section), arrow, map(_columns, blocks))
            return [TableFile(number, names[0], rows)]
        return self._split(container, order, number, names, blocks)

    def _split(
        self, container: Container, order: Order, number: int, names: Sequence[str], blocks: Iterator[RowBlock]
    ) -> list[TableFile]:
        schema = self._model.content.tables[number]
        arrow = row_schema(schema.name, schema.dim, schema.state_width)
        rows = [0] * len(names)
        with ExitStack() as stack:
            asides = [stack.enter_context(Container(self._path.with_name(f"{self._path.name}.{group}")))
                      for group in range(len(names))]
            with ExitStack() as writers:
                sections = [writers.enter_context(aside.section(name))
                            for aside, name in zip(asides, names, strict=True)]
                sinks = [writers.enter_context(pa.ipc.new_file(arrow_sink(section), arrow))
                         for section in sections]
                for block in blocks:
                    slots = slots_of(block.ids, schema.name)
                    for group, cut in enumerate(order.cuts):
                        chosen = block.select(cut.slots[slots])
                        if len(chosen):
                            sinks[group].write_batch(record_batch(arrow, _columns(chosen)))
                            rows[group] += len(chosen)
            for aside, name in zip(asides, names, strict=True):
                container.append(name, aside.path)
        return [TableFile(number, name, count) for name, count in zip(names, rows, strict=True)]

    def _with_removed(self, container: Container, order: Order, group: int, file: TableFile) -> TableFile:
        """The file's entry, with the ids that were removed since the base, if any."""
        ids = order.changes.removed_of(file.table)
        ids = ids[order.cuts[group].slots[slots_of(ids, self._model.content.tables[file.table].name)]]
        if not len(ids):
            return file
        name = removed_file_name(group, file.table)
        with container.section(name) as section:
            write_removed(arrow_sink(section), ids)
        return TableFile(file.table, file.file, file.rows, name, len(ids))

    def _rows(self, order: Order, number: int) -> Iterator[RowBlock]:
        changes, name = order.changes, self._model.content.tables[number].name
        for block in self._reader.rows(self.cancelled):
            if changes.base:
                block = block.select(changes.keep(slots_of(block.ids, name), block.last_step))
            yield block

    def _chunks(self, number: int) -> Iterator[tuple[int, DenseChunk]]:
        name, slots = self._model.content.dense[number].name, self._model.chunk_slots(number)
        for record in self._model.store.copy_dense(self._model.store_block(number)):
            if self.cancelled.is_set():
                raise Cancelled
            yield int(slots[record.chunk]), _named(name, record)


def _columns(block: RowBlock) -> RowColumns:
    return RowColumns(block.ids, block.values, block.state, block.updates, block.frequency, block.last_step)


def _named(name: str, record: DenseRecord) -> DenseChunk:
    return DenseChunk(name, record.chunk, record.values, record.state, record.updates)
