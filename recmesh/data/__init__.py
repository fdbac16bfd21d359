"""Datasets in files: what they hold (`index_tasks`, `inspect`) and their rows (`TaskReader`).

Everything is columnar from the file to the batch. The content of a position is a pure function of its
task record: files are checked against the size and the tag they were indexed with, column types never
depend on which part of a file is read, and order comes from the record's seed.
"""

from recmesh.data.records import Batch, FileSlice, IdColumn, TaskRecord, concat

__all__ = ["Batch", "FileSlice", "IdColumn", "TaskRecord", "concat"]
