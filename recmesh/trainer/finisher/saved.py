"""A snapshot's parts as whole tables and blocks of the declared model."""

from collections.abc import Sequence

import numpy as np

from recmesh.formats.snapshot import Part, SnapshotError, open_part, read_dense, read_table
from recmesh.runtime.errors import DataLoss
from recmesh.store import RowBlock, TableSchema, candidates
from recmesh.store.schema import table_from_json
from recmesh.trainer.ports import Declared
from recmesh.trainer.session import Floats, TableRows


def load_saved(
    part_uris: Sequence[str], declared: Declared
) -> tuple[dict[str, TableRows], dict[str, Floats]]:
    """Tables ascending by id, and dense blocks; DataLoss when files are damaged or of another model."""
    try:
        parts = [open_part(uri) for uri in part_uris]
        tables: dict[str, TableRows] = {}
        for table in declared.tables:
            saved = read_table(parts, table.name)
            if saved.values.shape[1] != table.dim:
                raise DataLoss(
                    f"the snapshot's table {table.name!r} has {saved.values.shape[1]} columns, "
                    f"and the model declares {table.dim}"
                )
            trained = ~candidates(_schema(parts, table.name), RowBlock(*saved))    # others serve as ids never seen
            tables[table.name] = TableRows(saved.ids[trained], saved.values[trained])
        dense = read_dense(parts)
    except SnapshotError as error:
        raise DataLoss(f"the snapshot can't be read: {error}") from error
    for block in declared.dense:
        if block.name not in dense:
            raise DataLoss(f"the snapshot has no dense block {block.name!r}")
        if dense[block.name].shape != block.shape:
            raise DataLoss(f"dense block {block.name!r} is {dense[block.name].shape}, not {block.shape}")
    return tables, {block.name: np.ascontiguousarray(dense[block.name]) for block in declared.dense}


def _schema(parts: Sequence[Part], table: str) -> TableSchema:
    """What the rows began with, and how rare a candidate is, as the snapshot has it."""
    newest = max(parts, key=lambda part: part.document.snapshot).document
    return next(table_from_json(schema) for schema in newest.tables if schema["name"] == table)
