"""Snapshots as files: docs/formats/snapshot.md. Readable without a service, and without recmesh.

One folder per parameter server (`ps-000`), in it `part.json`, rows as Arrow IPC files and dense chunks as
safetensors. Nothing is pickled.
"""

from recmesh.formats.snapshot.chain import Level, Part, check_partition, levels, newest_rows
from recmesh.formats.snapshot.document import (
    FileDocument,
    GroupDocument,
    PartDocument,
    SnapshotError,
    TableFile,
)
from recmesh.formats.snapshot.reading import (
    StoredPart,
    dense_chunks,
    level_dense,
    map_file,
    open_folder,
    open_part,
    read_dense,
    read_table,
    table_blocks,
    verified,
)
from recmesh.formats.snapshot.rows import DenseChunk, RowColumns, read_dense_chunks, read_rows

__all__ = [
    "DenseChunk",
    "FileDocument",
    "GroupDocument",
    "Level",
    "Part",
    "PartDocument",
    "RowColumns",
    "SnapshotError",
    "StoredPart",
    "TableFile",
    "check_partition",
    "dense_chunks",
    "level_dense",
    "levels",
    "map_file",
    "newest_rows",
    "open_folder",
    "open_part",
    "read_dense",
    "read_dense_chunks",
    "read_rows",
    "read_table",
    "table_blocks",
    "verified",
]
