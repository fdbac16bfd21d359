"""Datasets in files: what they hold (`index_dataset`) and their rows (`TaskReader`, `whole_dataset`).

Everything is columnar from the file to the batch. The content of a position is a pure function of its
task record: files are checked against the size and the tag they were indexed with, column types never
depend on which part of a file is read, and order comes from the record's seed.
"""

from recmesh.data.files import FileInfo
from recmesh.data.index import Index, files_of, index_dataset, index_tasks, preview
from recmesh.data.reader import TaskReader, whole_dataset
from recmesh.data.records import Batch, FileSlice, IdColumn, TaskRecord, concat

__all__ = [
    "Batch",
    "FileInfo",
    "FileSlice",
    "IdColumn",
    "Index",
    "TaskReader",
    "TaskRecord",
    "concat",
    "files_of",
    "index_dataset",
    "index_tasks",
    "preview",
    "whole_dataset",
]
