"""The declared model over the store: table and block numbers, checks of messages, one apply.

Numbers on the wire are places in the declaration; the store's own may differ after a restore. Not thread-safe
but for `pull` and `apply`: `declare` and `load` need the exclusive latch.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import numpy as np
from numpy.typing import NDArray

from recmesh.formats import CHUNK, SLOTS, SlotMask, chunk_count, slots_of, table_salt
from recmesh.runtime.errors import DataLoss, InvalidArgument, Violation
from recmesh.runtime.gates import gate
from recmesh.store import DenseRecord, DenseSchema, RowBlock, Store, TableSchema, kernels
from recmesh.trainer.ps.baseline import Baselines
from recmesh.trainer.ps.changes import ChangeLog
from recmesh.trainer.ps.demand import SlotDemand
from recmesh.trainer.ps.fitting import chunk_misfits, row_misfits
from recmesh.trainer.ps.messages import Declaration, DenseValues, Part, RowGrads, TableSize
from recmesh.trainer.ps.refusals import NotDeclared

TableIds = tuple[int, NDArray[np.int64]]
"""(table, ids)"""


class Model:
    """Tables and dense blocks of one generation."""

    def __init__(self, *, memory_bytes: int | None = None) -> None:
        self.store = Store(memory_bytes=memory_bytes)
        self.content = Declaration()
        """What the store holds, in the order of the numbers on the wire and in snapshots."""
        self.declared = False
        self.baselines = Baselines()
        self.demand = SlotDemand()
        self.changes: ChangeLog | None = None
        """What pushes change in slots that are being copied to another server."""
        self._tables: list[int] = []
        self._dense: list[int] = []
        self._salts: list[np.uint64] = []
        self._chunk_slots: list[NDArray[np.uint16]] = []

    # ---- structure

    def load(self, content: Declaration) -> None:
        """Empty tables and blocks for what a snapshot holds; `load_rows` and `load_chunk` fill them."""
        for table in content.tables:
            self._tables.append(self.store.add_table(table))
        for block in content.dense:
            self._dense.append(self.store.add_dense(block))
        self._set(content)

    def load_rows(self, table: int, rows: RowBlock) -> None:
        """Rows of the table with this number; DataLoss when they do not fit it."""
        if found := row_misfits(self.content.tables[table], rows):
            raise DataLoss("; ".join(map(str, found)), reason="SNAPSHOT_DAMAGED")
        self.store.load_rows(self._tables[table], rows)

    def load_chunk(self, record: DenseRecord) -> None:
        """A chunk of the block with the record's number; DataLoss when it does not fit it."""
        if found := chunk_misfits(self.content.dense[record.block], record):
            raise DataLoss("; ".join(map(str, found)), reason="SNAPSHOT_DAMAGED")
        self.store.load_chunk(self._internal(record))

    def declare(self, declaration: Declaration, values: Sequence[DenseValues], *, owned: SlotMask) -> bool:
        """The first declaration of a generation wins; True when there was one, and it is equal.

        What a snapshot brought is matched by name: values stay, optimizer state stays when the optimizer is
        of the same kind, hyperparameters are the declaration's. InvalidArgument names every difference.
        """
        if self.declared:
            _same(self.content, declaration)
            return True
        for table in declaration.tables:
            table.check()
        for block in declaration.dense:
            block.check()
        self._check_names(declaration)
        given = self._check_values(declaration, values, owned)
        tables = [self._table(number, declaration) for number in range(len(declaration.tables))]
        dense = [self._block(number, declaration, given) for number in range(len(declaration.dense))]
        kept_tables, kept_dense = set(tables), set(dense)
        for old in set(self._tables) - kept_tables:
            self.store.drop_table(old)
        for old in set(self._dense) - kept_dense:
            self.store.drop_dense(old)
        self._tables, self._dense = tables, dense
        self._set(declaration)
        self.declared = True
        return False

    def _set(self, content: Declaration) -> None:
        self.content = content
        self.baselines.clear()
        self._salts = [np.uint64(table_salt(table.name)) for table in content.tables]
        self._chunk_slots = [slots_of(np.arange(self.store.dense[number].count), block.name)
                             for number, block in zip(self._dense, content.dense, strict=True)]

    def _check_names(self, declaration: Declaration) -> None:
        found = []
        for kind, names in (("tables", [t.name for t in declaration.tables]),
                            ("dense", [d.name for d in declaration.dense])):
            found += [Violation(f"{kind}.{name}", "is declared twice")
                      for name, n in Counter(names).items() if n > 1]
        dims = {table.name: table.dim for table in self.content.tables}
        found += [Violation(f"tables.{t.name}.dim", f"is {t.dim}, but the snapshot has {dims[t.name]}")
                  for t in declaration.tables if dims.get(t.name, t.dim) != t.dim]
        shapes = {block.name: block.shape for block in self.content.dense}
        found += [Violation(f"dense.{d.name}.shape", f"is {d.shape}, but the snapshot has {shapes[d.name]}")
                  for d in declaration.dense if shapes.get(d.name, d.shape) != d.shape]
        if found:
            raise InvalidArgument("the model cannot be declared", violations=found)

    def _check_values(
        self, declaration: Declaration, values: Sequence[DenseValues], owned: SlotMask
    ) -> Mapping[tuple[int, int], NDArray[np.float32]]:
        given = {(block, chunk): array for block, chunk, array in values}
        loaded = {schema.name: self.store.dense[number].chunks
                  for number, schema in zip(self._dense, self.content.dense, strict=True)}
        found = []
        for number, schema in enumerate(declaration.dense):
            for chunk, slot in enumerate(slots_of(np.arange(chunk_count(schema.size)), schema.name)):
                if not owned[slot] or chunk in loaded.get(schema.name, {}):
                    continue
                length = min(CHUNK, schema.size - chunk * CHUNK)
                array = given.get((number, chunk))
                if array is None:
                    found.append(Violation(f"dense.{schema.name}", f"chunk {chunk} has no initial values"))
                elif array.size != length:
                    found.append(Violation(f"dense.{schema.name}",
                                           f"chunk {chunk} has {array.size} values, not {length}"))
        if found:
            raise InvalidArgument("the model cannot be declared", violations=found)
        return {place: array for place, array in given.items() if place[0] < len(declaration.dense)
                and owned[slots_of(np.array([place[1]]), declaration.dense[place[0]].name)[0]]}

    def _table(self, number: int, declaration: Declaration) -> int:
        schema = declaration.tables[number]
        place = next((i for i, old in enumerate(self.content.tables) if old.name == schema.name), None)
        if place is None:
            return self.store.add_table(schema)
        old = self.content.tables[place]
        if (old.optimizer.kind, old.dtype) == (schema.optimizer.kind, schema.dtype):
            self.store.tables[self._tables[place]].use(schema)
            return self._tables[place]
        return self.store.replace_table(self._tables[place], schema)

    def _block(
        self, number: int, declaration: Declaration, given: Mapping[tuple[int, int], NDArray[np.float32]]
    ) -> int:
        schema = declaration.dense[number]
        place = next((i for i, old in enumerate(self.content.dense) if old.name == schema.name), None)
        if place is None:
            block = self.store.add_dense(schema)
        elif self.content.dense[place].optimizer.kind == schema.optimizer.kind:
            block = self._dense[place]
            self.store.dense[block].use(schema)
        else:
            block = self.store.replace_dense(self._dense[place], schema)
        for (owner, chunk), values in given.items():
            if owner == number and chunk not in self.store.dense[block].chunks:
                self.store.create_chunk(block, chunk, values)
        return block

    # ---- messages

    def check_pull(
        self, tables: Sequence[tuple[int, NDArray[np.int64]]], *, owned: NDArray[np.uint8]
    ) -> bool:
        """Whether every id's slot is owned; InvalidArgument when a table does not exist."""
        if not self.declared:
            raise NotDeclared
        self._check_tables([number for number, _ in tables])
        return all(self._is_ours(number, ids, owned) for number, ids in tables)

    def pull(
        self, tables: Sequence[tuple[int, NDArray[np.int64]]], *, absent_as_zero: bool
    ) -> list[NDArray[np.float32]]:
        """float32 [ids, dim] for each entry."""
        return [self.store.pull(self._tables[number], ids, absent_as_zero=absent_as_zero)
                for number, ids in tables]

    def pull_dense(self, *, since: int, owned: SlotMask) -> tuple[list[DenseValues], int]:
        """Chunks in owned slots that changed after `since`, and the clock. Others are on their way in or out."""
        chunks, clock = self.store.pull_dense(since=since)
        numbers = {internal: number for number, internal in enumerate(self._dense)}
        named = [(numbers[block], chunk, values) for block, chunk, values in chunks]
        return [entry for entry in named if owned[self._chunk_slots[entry[0]][entry[1]]]], clock

    def check_part(self, part: Part, *, owned: NDArray[np.uint8]) -> bool:
        """Whether every row's and chunk's slot is owned; InvalidArgument when anything has a wrong shape."""
        if not self.declared:
            raise NotDeclared
        self._check_tables([grads.table for grads in part.tables])
        found = []
        for i, grads in enumerate(part.tables):
            dim, n = self.content.tables[grads.table].dim, len(grads.ids)
            if grads.grads.size != n * dim:
                reason = f"{grads.grads.size} values for {n} ids of dim {dim}"
                found.append(Violation(f"tables[{i}].grads", reason))
            if grads.counts is not None and len(grads.counts) != n:
                found.append(Violation(f"tables[{i}].counts", f"{len(grads.counts)} for {n} ids"))
        ours = True
        for i, (block, chunk, grad) in enumerate(part.dense):
            slots = self._chunk_slots[block] if block < len(self._chunk_slots) else ()
            if chunk >= len(slots):
                found.append(Violation(f"dense[{i}]", f"there is no chunk {chunk} of block {block}"))
                continue
            if grad.size != (length := self.store.dense[self._dense[block]].length(chunk)):
                found.append(Violation(f"dense[{i}].values", f"{grad.size} values, not {length}"))
            ours = ours and bool(owned[slots[chunk]])
        if found:
            raise InvalidArgument("the part cannot be applied", violations=found)
        return ours and all(self._is_ours(grads.table, grads.ids, owned) for grads in part.tables)

    def _is_ours(self, table: int, ids: NDArray[np.int64], owned: NDArray[np.uint8]) -> bool:
        return int(kernels.first_foreign(ids, self._salts[table], owned, self.demand.counts)) < 0

    def _check_tables(self, numbers: Sequence[int]) -> None:
        for i, number in enumerate(numbers):
            if not 0 <= number < len(self._tables):
                raise InvalidArgument("there is no such table", violations=[
                    Violation(f"tables[{i}].table", f"{number}; {len(self._tables)} are declared")])

    def reserved(self, *parts: Part) -> AbstractContextManager[None]:
        """Room for every row that the parts may create; ResourceExhausted before anything is claimed."""
        new: Counter[int] = Counter()
        for grads in (grads for part in parts for grads in part.tables):
            new[self._tables[grads.table]] += len(grads.ids)
        return self.store.reserved(new)

    def apply(self, part: Part, *, slots: SlotMask, whole: bool, step: int) -> list[TableIds]:
        """One optimizer step on what lies in the group's slots; `whole`: all of the part does. Must not fail.

        Returns the ids that each table evicted, of these slots.
        """
        evicted = []
        for grads in part.tables:
            chosen = grads if whole else self._only(grads, slots)
            if len(chosen.ids):
                dim = self.content.tables[chosen.table].dim
                gone = self.store.apply(self._tables[chosen.table], chosen.ids, chosen.grads.reshape(-1, dim),
                                        chosen.counts, step=step, slots=slots)
                if len(gone):
                    evicted.append((chosen.table, gone))
                    self.baselines.note_removed(chosen.table, gone)
        gate("ps.rows", part.batch)
        dense = [entry for entry in part.dense if whole or slots[self._chunk_slots[entry[0]][entry[1]]]]
        self.store.apply_dense([(self._dense[block], chunk, grad) for block, chunk, grad in dense], step=step)
        if self.changes is not None:
            self._log_changes(self.changes, part, evicted)
        return evicted

    def _log_changes(self, changes: ChangeLog, part: Part, evicted: Sequence[TableIds]) -> None:
        for table, ids in [*((grads.table, grads.ids) for grads in part.tables), *evicted]:
            changes.rows(table, ids, salt=self._salts[table])
        changes.chunks([(block, chunk) for block, chunk, _ in part.dense
                        if changes.slots[self._chunk_slots[block][chunk]]])

    def _only(self, grads: RowGrads, slots: SlotMask) -> RowGrads:
        places = np.empty(len(grads.ids), np.int64)
        n = kernels.select(grads.ids, self._salts[grads.table], slots.view(np.uint8), places)
        keep, dim = places[:n], self.content.tables[grads.table].dim
        return RowGrads(grads.table, grads.ids[keep], grads.grads.reshape(-1, dim)[keep],
                        None if grads.counts is None else grads.counts[keep])

    # ---- for moves: whole rows and chunks, whether their slots are owned or not

    def scan_rows(self, table: int, slots: SlotMask) -> Iterator[RowBlock]:
        """Every row of these slots, as it is when its turn comes."""
        return self.store.scan(self._tables[table], slots)

    def read_rows(self, table: int, ids: NDArray[np.int64]) -> RowBlock:
        """Those of the rows that exist."""
        return self.store.read_rows(self._tables[table], ids)

    def upsert_rows(self, table: int, rows: RowBlock) -> None:
        """Rows as they are elsewhere; before any effect InvalidArgument when they do not fit, and ResourceExhausted
        when they have no room."""
        self._check_tables([table])
        if found := row_misfits(self.content.tables[table], rows):
            raise InvalidArgument("the rows do not fit the model", violations=found)
        self.store.upsert_rows(self._tables[table], rows)

    def remove_rows(self, table: int, ids: NDArray[np.int64]) -> int:
        """How many there were."""
        self._check_tables([table])
        return self.store.remove_rows(self._tables[table], ids)

    def read_chunk(self, block: int, chunk: int) -> DenseRecord:
        """A chunk, named by the declaration's number."""
        record = self.store.read_chunk(self._dense[block], chunk)
        return DenseRecord(block, chunk, record.values, record.state, record.updates)

    def upsert_chunk(self, record: DenseRecord) -> None:
        """A chunk as it is elsewhere; InvalidArgument when it does not fit."""
        self._check_chunk(record)
        self.store.upsert_chunk(self._internal(record))

    def _check_chunk(self, record: DenseRecord) -> None:
        if not 0 <= record.block < len(self._dense):
            raise InvalidArgument("there is no such block", violations=[
                Violation("chunks.block", f"{record.block}; {len(self._dense)} are declared")])
        if found := chunk_misfits(self.content.dense[record.block], record):
            raise InvalidArgument("the chunk does not fit the model", violations=found)

    def _internal(self, record: DenseRecord) -> DenseRecord:
        return DenseRecord(self._dense[record.block], record.chunk, record.values, record.state, record.updates)

    def check_rows_within(self, table: int, ids: NDArray[np.int64], slots: SlotMask) -> None:
        """InvalidArgument unless all of these ids are in the slots."""
        self._check_tables([table])
        first = kernels.first_foreign(ids, self._salts[table], slots.view(np.uint8), np.zeros(SLOTS, np.uint32))
        if first >= 0:
            raise InvalidArgument("rows come with their slots", violations=[
                Violation("rows.ids", f"the slot of id {ids[first]} in {self.content.tables[table].name!r} does not")])

    def check_chunk_within(self, record: DenseRecord, slots: SlotMask) -> None:
        """InvalidArgument unless there is such a chunk, and it is in the slots."""
        self._check_chunk(record)
        if not slots[self._chunk_slots[record.block][record.chunk]]:
            raise InvalidArgument("chunks come with their slots", violations=[
                Violation("chunks.chunk", f"the slot of chunk {record.chunk} of "
                                          f"{self.content.dense[record.block].name!r} does not")])

    def remove_chunk(self, block: int, chunk: int) -> None:
        """A chunk that is another server's."""
        self.store.remove_chunk(self._dense[block], chunk)

    # ---- for snapshots and statistics

    def store_table(self, number: int) -> int:
        """The store's number of a table."""
        return self._tables[number]

    def store_block(self, number: int) -> int:
        """The store's number of a dense block."""
        return self._dense[number]

    def chunk_slots(self, number: int) -> NDArray[np.uint16]:
        """The slot of each chunk of a block."""
        return self._chunk_slots[number]

    def sizes(self) -> list[TableSize]:
        """Each table's share."""
        tables = [self.store.tables[number] for number in self._tables]
        return [TableSize(table.schema.name, table.rows, table.memory_bytes) for table in tables]


def _same(first: Declaration, later: Declaration) -> None:
    """InvalidArgument names each table and block that differs from the first declaration."""
    found = []
    both: Sequence[tuple[str, Sequence[TableSchema | DenseSchema], Sequence[TableSchema | DenseSchema]]] = (
        ("tables", first.tables, later.tables), ("dense", first.dense, later.dense))
    for kind, ours, theirs in both:
        if len(ours) != len(theirs):
            found.append(Violation(kind, f"{len(theirs)} are declared, but {len(ours)} were before"))
        found += [Violation(f"{kind}.{b.name}", f"is {b}, but was declared as {a}")
                  for a, b in zip(ours, theirs, strict=False) if a != b]
    if found:
        raise InvalidArgument("the model was declared otherwise before", reason="DECLARED_OTHERWISE",
                              violations=found)


