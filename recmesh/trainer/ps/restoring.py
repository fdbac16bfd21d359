"""Loading a snapshot's parts into a model: the slots that this server owns now, wherever they were."""

from collections.abc import Sequence

import numpy as np

from recmesh.formats import Ledger, SlotMask, slots_of
from recmesh.formats.snapshot import (
    GroupDocument,
    Level,
    Part,
    SnapshotError,
    check_partition,
    levels,
    newest_rows,
    read_dense_chunks,
)
from recmesh.runtime.errors import DataLoss
from recmesh.store import DenseRecord, RowBlock
from recmesh.store.schema import dense_from_json, table_from_json
from recmesh.trainer.ps.ledger import Cut
from recmesh.trainer.ps.messages import Declaration
from recmesh.trainer.ps.model import Model


def load_parts(model: Model, parts: Sequence[Part], *, owned: SlotMask, fresh_ledger: bool) -> list[Cut]:
    """Fill an empty model from a snapshot and those that it builds on.

    Returns the groups, each slot with the ledger that it was saved with. DataLoss when a file is damaged, a
    snapshot of the chain is missing, or the parts do not hold every owned slot exactly once.
    """
    try:
        chain = levels(parts)
        check_partition(chain[0], owned)
        content = _content(chain)
        model.load(content)
        for number, table in enumerate(content.tables):
            for rows in newest_rows(chain, table.name, wanted=owned):
                last_step = np.zeros_like(rows.last_step) if fresh_ledger else rows.last_step
                model.load_rows(number, RowBlock(*rows[:-1], last_step))
        cuts = []
        for part in chain[0].parts:
            for group in part.document.groups:
                mine = group.slots & owned
                if mine.any():
                    cuts.append(Cut(mine, group.ledger, group.step))
                    if not fresh_ledger:
                        model.store.add_evicted({slot: n for slot, n in group.evicted.items() if mine[slot]})
                    _load_dense(model, part, group, mine)
    except SnapshotError as error:
        raise DataLoss(str(error), reason="SNAPSHOT_DAMAGED") from error
    return [Cut(owned.copy(), Ledger(), 0)] if fresh_ledger else cuts


def _content(chain: Sequence[Level]) -> Declaration:
    """Tables and blocks in the first part's order; every part of the chain that holds a slot has the same."""
    documents = [part.document for level in chain for part in level.parts if part.document.groups]
    first = documents[0]
    for document in documents[1:]:
        if (document.tables, document.dense) != (first.tables, first.dense):
            raise SnapshotError(f"the parts of ps {first.ps} (snapshot {first.snapshot}) and ps {document.ps} "
                                f"(snapshot {document.snapshot}) hold different models")
    return Declaration(tuple(table_from_json(value) for value in first.tables),
                       tuple(dense_from_json(value) for value in first.dense))


def _load_dense(model: Model, part: Part, group: GroupDocument, mine: SlotMask) -> None:
    numbers = {block.name: number for number, block in enumerate(model.content.dense)}
    for chunk in read_dense_chunks(memoryview(part.open(group.dense_file))):
        if chunk.block not in numbers:
            raise SnapshotError(f"{group.dense_file} has block {chunk.block!r}, which part.json has not")
        if mine[slots_of(np.array([chunk.chunk]), chunk.block)[0]]:
            model.load_chunk(DenseRecord(numbers[chunk.block], chunk.chunk, chunk.values, chunk.state,
                                         chunk.updates))
