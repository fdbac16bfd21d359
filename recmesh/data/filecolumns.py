"""What file systems tell of the files of a folder, as columns: a folder of an hour may have a hundred thousand files.

What they tell is read once; all else is done by Arrow and NumPy.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from fsspec.implementations.local import LocalFileSystem

from recmesh.data.files import FileInfo, tag_key, tag_of, tells_all

Way = Literal["folder", "pattern"]
_TEXT = pa.large_string()
_SCHEMA = pa.schema([("uri", _TEXT), ("size_bytes", pa.int64()), ("tag", _TEXT)])


@dataclass(frozen=True, slots=True, eq=False)
class Files:
    """Files in name order, by columns."""

    uris: pa.LargeStringArray
    sizes: npt.NDArray[np.int64]
    tags: pa.LargeStringArray

    @classmethod
    def of(cls, uris: Iterable[str], sizes: Iterable[int], tags: Iterable[str]) -> "Files":
        """From values of Python."""
        return cls(_strings(uris), np.array([*sizes], np.int64), _strings(tags))

    @classmethod
    def from_ipc(cls, data: Any) -> "Files":
        """What `to_ipc` made; the columns lie in `data`."""
        with pa.ipc.open_stream(data) as stream:
            uris, sizes, tags = stream.read_next_batch().columns
        return cls(uris, sizes.to_numpy(), tags)

    def to_ipc(self) -> pa.Buffer:
        """As a stream of Arrow's."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, _SCHEMA) as stream:
            stream.write_batch(pa.record_batch([self.uris, pa.array(self.sizes), self.tags], schema=_SCHEMA))
        return sink.getvalue()

    def __len__(self) -> int:
        return len(self.uris)

    def part(self, lo: int, hi: int) -> "Files":
        """Files [lo, hi)."""
        return self if (lo, hi) == (0, len(self)) else Files(self.uris[lo:hi], self.sizes[lo:hi], self.tags[lo:hi])

    def take(self, order: npt.NDArray[np.int64]) -> "Files":
        """File i of the answer is file order[i] of this."""
        return Files(self.uris.take(pa.array(order)), self.sizes[order], self.tags.take(pa.array(order)))

    def infos(self, lo: int, hi: int) -> list[FileInfo]:
        """Files [lo, hi)."""
        uris, tags = self.uris[lo:hi].to_pylist(), self.tags[lo:hi].to_pylist()
        return [FileInfo(*each) for each in zip(uris, self.sizes[lo:hi].tolist(), tags, strict=True)]


def listed(fs: Any, folder: str) -> Files:
    """The files of a folder as it is now; none where there is no such folder."""
    fs.invalidate_cache(folder)
    try:
        return _columns(fs, fs.ls(folder, detail=True))
    except (FileNotFoundError, NotADirectoryError):
        return Files.of((), (), ())


def globbed(fs: Any, pattern: str) -> Files:
    """The files of a pattern as they are now."""
    fs.invalidate_cache()                       # of what file systems keep themselves: which folders, nobody knows
    return _columns(fs, fs.glob(pattern, detail=True).values())


WAYS: Mapping[Way, Callable[[Any, str], Files]] = {"folder": listed, "pattern": globbed}
"""To list files: of a file system and a path there."""


def _columns(fs: Any, details: "Iterable[Mapping[str, Any]]") -> Files:
    """Files, not folders, in name order."""
    found = [*details]
    if "directory" in set(map(itemgetter("type"), found)):
        found = [each for each in found if each["type"] != "directory"]
    if not found:
        return Files.of((), (), ())
    if not tells_all(fs, found[0]):
        found = [fs.info(each["name"]) for each in found]
    first = found[0]["name"]
    prefix = "" if isinstance(fs, LocalFileSystem) else fs.unstrip_protocol(first).removesuffix(first)
    uris = _strings(map(itemgetter("name"), found))
    if prefix:
        uris = pc.binary_join_element_wise(pa.scalar(prefix, uris.type), uris, pa.scalar("", uris.type))
    files = Files(uris, _sizes(found), _tags(fs, found))
    return files.take(pc.sort_indices(uris).to_numpy().astype(np.int64))


def _sizes(found: Sequence[Mapping[str, Any]]) -> npt.NDArray[np.int64]:
    try:
        return np.fromiter(map(itemgetter("size"), found), np.int64, len(found))
    except TypeError:                           # None: the file system does not know
        return np.array([each["size"] or 0 for each in found], np.int64)


def _tags(fs: Any, found: Sequence[Mapping[str, Any]]) -> pa.LargeStringArray:
    """As `tag_of` each; most file systems' tags are plain text."""
    key = tag_key(fs, found[0])
    tags = [each.get(key) for each in found]
    if set(map(type, tags)) == {str}:
        plain = _strings(tags)
        if not pc.any(pc.or_(pc.equal(plain, ""), pc.starts_with(plain, '"'))).as_py():
            return plain
    return _strings(tag_of(fs, each["name"], each) for each in found)


def _strings(values: Iterable[Any]) -> pa.LargeStringArray:
    return pa.array([*values], _TEXT)
