"""Writing a part: its files one behind the other in one file, each with size and SHA-256."""

import fcntl
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import pyarrow as pa

from recmesh.formats.snapshot.document import FileDocument
from recmesh.formats.snapshot.rows import DenseChunk, dense_bytes

_COPY_BYTES = 16 << 20
_ALIGNMENT = 64            # so that a mapped Arrow file has aligned columns


class PlacedFile(NamedTuple):
    """A file of the part, and where it lies in the container."""

    name: str
    offset: int
    size_bytes: int
    sha256: str

    @property
    def document(self) -> FileDocument:
        """Its entry in part.json."""
        return FileDocument(self.name, self.size_bytes, self.sha256)


class Section:
    """One file while it is written: a binary file object whose position starts at 0."""

    def __init__(self, container: Any) -> None:
        self._container, self._digest = container, hashlib.sha256()
        self.size_bytes = 0
        self.closed = False

    def write(self, data: Any) -> int:
        """Append."""
        view = memoryview(data).cast("B")
        self._container.write(view)
        self._digest.update(view)
        self.size_bytes += len(view)
        return len(view)

    def tell(self) -> int:
        """Bytes written."""
        return self.size_bytes

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """The container stays open."""
        self.closed = True

    def writable(self) -> bool:
        """Yes."""
        return True

    def readable(self) -> bool:
        """No."""
        return False

    def seekable(self) -> bool:
        """No."""
        return False

    @property
    def sha256(self) -> str:
        """Of what was written."""
        return self._digest.hexdigest()


class Container:
    """A file that holds the files of a part. Removed on exit unless `keep()` was called.

    It is locked as long as this process has it open: the lock ends with the process, however that ends.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files: list[PlacedFile] = []
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._file = os.fdopen(descriptor, "wb", buffering=0)
        self._keep = False

    @contextmanager
    def section(self, name: str) -> Iterator[Section]:
        """Write the next file."""
        offset = self._file.tell()
        if padding := -offset % _ALIGNMENT:
            self._file.write(bytes(padding))
            offset += padding
        section = Section(_Whole(self._file))
        yield section
        self.files.append(PlacedFile(name, offset, section.size_bytes, section.sha256))

    def append(self, name: str, other: Path) -> None:
        """The next file is a copy of another."""
        with self.section(name) as section, other.open("rb", buffering=0) as source:
            while data := source.read(_COPY_BYTES):
                section.write(data)

    def write_dense(self, name: str, chunks: Iterable[DenseChunk]) -> int:
        """The next file holds these dense chunks; returns how many."""
        listed = list(chunks)
        with self.section(name) as section:
            for data in dense_bytes(listed):
                section.write(data)
        return len(listed)

    @property
    def size_bytes(self) -> int:
        """Of the container."""
        return self._file.tell()

    def discard(self) -> None:
        """Close and remove."""
        self._file.close()
        self.path.unlink(missing_ok=True)

    def keep(self) -> None:
        """Somebody else owns the file now."""
        self._keep = True

    def __enter__(self) -> Self:
        """Open since construction."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; remove the file unless it was kept."""
        self._file.close()
        if not self._keep:
            self.path.unlink(missing_ok=True)


class _Whole:
    """A raw file may write less than it is given."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, view: memoryview) -> None:
        """All of it."""
        while view:
            view = view[self._file.write(view):]


def arrow_sink(section: Section) -> Any:
    """The section as pyarrow writes to it."""
    return pa.PythonFile(section, mode="w")
