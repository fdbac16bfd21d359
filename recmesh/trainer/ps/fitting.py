"""Whether rows and chunks that come from elsewhere fit the model: kernels take lengths and widths on trust."""

from recmesh.formats import CHUNK, chunk_count
from recmesh.runtime.errors import Violation
from recmesh.store import DenseRecord, DenseSchema, RowBlock, TableSchema


def row_misfits(schema: TableSchema, rows: RowBlock) -> list[Violation]:
    """What a table of this schema cannot take of the rows, by field."""
    n = len(rows)
    arrays = {
        "values": (rows.values.shape, (n, schema.dim)), "state": (rows.state.shape, (n, schema.state_width)),
        "updates": (rows.updates.shape, (n,)), "frequency": (rows.frequency.shape, (n,)),
        "last_step": (rows.last_step.shape, (n,)),
    }
    return [Violation(f"rows.{name}", f"is {found} for {n} rows of table {schema.name!r}, not {expected}")
            for name, (found, expected) in arrays.items() if found != expected]


def chunk_misfits(schema: DenseSchema, record: DenseRecord) -> list[Violation]:
    """What a block of this schema cannot take of the chunk, by field."""
    if not 0 <= record.chunk < chunk_count(schema.size):
        return [Violation("chunks.chunk", f"block {schema.name!r} has no chunk {record.chunk}")]
    length = min(CHUNK, schema.size - record.chunk * CHUNK)
    sizes = {"values": (len(record.values), length),
             "state": (len(record.state), schema.optimizer.state_width(length))}
    return [Violation(f"chunks.{name}", f"chunk {record.chunk} of {schema.name!r} has {found}, not {expected}")
            for name, (found, expected) in sizes.items() if found != expected]
