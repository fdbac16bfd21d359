"""Joined samples in files by windows of their time; a marker says that a window is complete.

A window's files are numbered, and each appears whole. Their count is written down with the positions: a file beyond it
is of a life that ended before that, and its rows are joined again; so it is replaced, or removed before the marker
comes. The marker comes after the note that no row goes into the window any more.
"""

import asyncio
import io
import os
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from recmesh.data.windows import filled
from recmesh.join.domain import Joined
from recmesh.join.messages import row_of
from recmesh.runtime.errors import InvalidArgument, Unavailable
from recmesh.spec.join import FileOutput, LabelJoin

_TYPES = {
    "int": pa.int64(), "float": pa.float64(), "string": pa.string(),
    "list<int>": pa.list_(pa.int64()), "list<float>": pa.list_(pa.float64()), "list<string>": pa.list_(pa.string()),
}


@dataclass
class _Window:
    files: int = 0
    rows: list[Joined] = field(default_factory=list)


class Files:
    """The files of one join."""

    def __init__(self, spec: LabelJoin) -> None:
        assert spec.files is not None
        self._spec: FileOutput = spec.files
        self._name, self._label, self._step = spec.name, spec.label, int(spec.files.window)
        self._open: dict[int, _Window] = {}
        self._closed_until: int | None = None
        self._closing: dict[int, int] = {}
        """Windows whose marker is still to come, and how many files they have."""
        self._written: list[Joined] = []
        self.late_samples = 0
        """That came after their window was complete, and so are in the one after it."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what was written down."""
        self._open = {int(begin): _Window(files) for begin, files in state["open"]}
        self._closing = {int(begin): files for begin, files in state["closing"]}
        self._closed_until, self.late_samples = state["closed_until"], state["late_samples"]

    def state(self) -> dict[str, Any]:
        """To be written down, after `flush`."""
        return {
            "open": [[begin, window.files] for begin, window in self._open.items()],
            "closing": list(self._closing.items()), "closed_until": self._closed_until,
            "late_samples": self.late_samples,
        }

    async def join(self, joined: Joined) -> None:
        """Take a sample with its label; it is stored when `flush` tells it."""
        begin = int(joined.sample.time // self._step) * self._step
        if self._closed_until is not None and begin < self._closed_until:
            begin = self._closed_until
            self.late_samples += 1
        window = self._open.setdefault(begin, _Window())
        window.rows.append(joined)
        if len(window.rows) >= self._spec.rows:
            await self._write(begin, window)

    async def advance(self, frontier: float) -> None:
        """No sample that is older will come: windows up to there are complete."""
        if not self._open and self._closed_until is None:
            return
        first = min(self._open) if self._closed_until is None else self._closed_until
        if frontier < first + self._step:
            return
        last = max(self._open, default=first - self._step) + self._step
        until = last if frontier == float("inf") else int(frontier // self._step) * self._step
        for begin in range(first, until, self._step):
            window = self._open.pop(begin, _Window())
            if window.rows:
                await self._write(begin, window)
            self._closing[begin] = window.files
        self._closed_until = until

    async def flush(self) -> Sequence[Joined]:
        """What is stored by now, and was not told before."""
        written, self._written = self._written, []
        return written

    async def finish(self) -> None:
        """After it was written down that windows are complete: their markers."""
        for begin, files in self._closing.items():
            await asyncio.to_thread(self._mark, begin, files)
        self._closing.clear()

    async def _write(self, begin: int, window: _Window) -> None:
        rows = b"\n".join([row_of(joined, self._label) for joined in window.rows]) + b"\n"
        await asyncio.to_thread(self._store, self._path(begin, window.files), rows)
        self._written += window.rows
        window.files, window.rows = window.files + 1, []

    def _path(self, begin: int, number: int) -> str:
        return posixpath.join(filled(self._spec.folder, begin), f"{self._name}-{number:05d}.{self._spec.format}")

    def _store(self, path: str, rows: bytes) -> None:
        _put(path, _parquet(rows, self._spec.types, path) if self._spec.format == "parquet" else rows)

    def _mark(self, begin: int, files: int) -> None:
        folder = filled(self._spec.folder, begin)
        fs, inside = fsspec.core.url_to_fs(folder)
        begins, end = f"{self._name}-", f".{self._spec.format}"
        if fs.exists(inside):
            for path in fs.ls(inside, detail=False):
                number = posixpath.basename(path).removeprefix(begins).removesuffix(end)
                if path.endswith(f"{begins}{number}{end}") and number.isdigit() and int(number) >= files:
                    fs.rm_file(path)
        if self._spec.done:
            _put(posixpath.join(folder, self._spec.done), b"")


def _parquet(rows: bytes, types: Mapping[str, str], path: str) -> bytes:
    declared = pa.schema([(name, _TYPES[kind]) for name, kind in types.items()])
    try:
        table = pj.read_json(
            io.BytesIO(rows), read_options=pj.ReadOptions(use_threads=False, block_size=len(rows) + 1),
            parse_options=pj.ParseOptions(explicit_schema=declared or None, unexpected_field_behavior="infer"),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidArgument(f"{path} cannot be Parquet: {error}; files.types says what columns hold") from None
    made = io.BytesIO()
    pq.write_table(table, made)
    return made.getvalue()


def _put(path: str, content: bytes) -> None:
    """The file, whole or not at all; Unavailable where it cannot be written."""
    fs, inside = fsspec.core.url_to_fs(path)
    try:
        fs.makedirs(posixpath.dirname(inside), exist_ok=True)
        if not isinstance(fs, LocalFileSystem):
            fs.pipe_file(inside, content)         # object stores show an object when all of it is there
            return
        new = f"{inside}.new"
        with open(new, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, inside)
    except OSError as error:
        raise Unavailable(f"{path} cannot be written: {error}", reason="STORAGE") from error
