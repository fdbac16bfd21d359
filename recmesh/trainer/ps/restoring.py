"""Loading a snapshot's parts into a model: the slots that this server owns now, wherever they were."""

from collections.abc import Iterable, Sequence

import numpy as np

from recmesh.formats import SLOTS, Ledger, SlotMask, slots_of
from recmesh.formats.slotmap import to_runs
from recmesh.formats.snapshot import Part, PartDocument, SnapshotError, read_dense_chunks, read_rows
from recmesh.runtime.errors import DataLoss
from recmesh.store import DenseRecord, RowBlock
from recmesh.store.schema import dense_from_json, table_from_json
from recmesh.trainer.ps.ledger import Cut
from recmesh.trainer.ps.messages import Declaration
from recmesh.trainer.ps.model import Model


def load_parts(model: Model, parts: Sequence[Part], *, owned: SlotMask, fresh_ledger: bool) -> list[Cut]:
    """Fill an empty model; returns the groups, each slot with the ledger that it was saved with.

    DataLoss when a file is damaged, or the parts do not hold every owned slot exactly once.
    """
    try:
        _check_partition([part.document for part in parts], owned)
        content = _content([part.document for part in parts])
        model.load(content)
        cuts = [cut for part in parts for cut in _load(model, part, owned, fresh=fresh_ledger)]
    except SnapshotError as error:
        raise DataLoss(str(error), reason="SNAPSHOT_DAMAGED") from error
    return [Cut(owned.copy(), Ledger(), 0)] if fresh_ledger else cuts


def _check_partition(documents: Iterable[PartDocument], owned: SlotMask) -> None:
    times = np.zeros(SLOTS, np.int64)
    for document in documents:
        for group in document.groups:
            times += group.slots
    wrong = owned & (times != 1)
    if wrong.any():
        raise SnapshotError(f"the parts do not hold each of the slots {to_runs(wrong)} exactly once")


def _content(documents: Sequence[PartDocument]) -> Declaration:
    """Tables and blocks in the first part's order; every part has the same."""
    first = documents[0]
    for document in documents[1:]:
        if (document.tables, document.dense) != (first.tables, first.dense):
            raise SnapshotError(f"the parts of ps {first.ps} and ps {document.ps} hold different models")
    return Declaration(tuple(table_from_json(value) for value in first.tables),
                       tuple(dense_from_json(value) for value in first.dense))


def _load(model: Model, part: Part, owned: SlotMask, *, fresh: bool) -> list[Cut]:
    cuts = []
    for group in part.document.groups:
        mine = group.slots & owned
        if not mine.any():
            continue
        cuts.append(Cut(mine, group.ledger, group.step))
        if not fresh:
            model.store.add_evicted({slot: n for slot, n in group.evicted.items() if mine[slot]})
        whole = bool((mine == group.slots).all())
        for file in group.tables:
            name = model.content.tables[file.table].name
            for block in read_rows(part.open(file.file)):
                rows = RowBlock(*block)
                rows = rows if whole else rows.select(mine[slots_of(rows.ids, name)])
                if fresh:
                    rows = RowBlock(rows.ids, rows.values, rows.state, rows.updates, rows.frequency,
                                    np.zeros_like(rows.last_step))
                model.load_rows(file.table, rows)
        numbers = {block.name: number for number, block in enumerate(model.content.dense)}
        for chunk in read_dense_chunks(memoryview(part.open(group.dense_file))):
            if chunk.block not in numbers:
                raise SnapshotError(f"{group.dense_file} has block {chunk.block!r}, which part.json has not")
            if mine[slots_of(np.array([chunk.chunk]), chunk.block)[0]]:
                model.load_chunk(DenseRecord(numbers[chunk.block], chunk.chunk, chunk.values, chunk.state,
                                             chunk.updates))
    return cuts
