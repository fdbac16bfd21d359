"""Listings of folders: each is asked for once, however many patterns, sources and streams need it.

A listing is columns, not objects: a folder of an hour may have a hundred thousand files. What file systems tell of each
of them is read once, and all else is done by Arrow and NumPy.
"""

import fnmatch
import re
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import fsspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from fsspec.implementations.local import LocalFileSystem

from recmesh.data.files import FileInfo, naming, tag_key, tag_of, tells_all
from recmesh.data.tables import table_files
from recmesh.spec.dataset import Source

KEPT_FILES = 500_000
"""Files of listings that are kept, of all folders together; the newest listing always is."""
_MAGIC = re.compile(r"[*?\[]")

Opened = Callable[[str], tuple[Any, str]]
"""A URL -> its file system, and the path there."""


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


def _strings(values: Iterable[Any]) -> pa.LargeStringArray:
    return pa.array([*values], pa.large_string())


@dataclass
class Lister:
    """Lists files by pattern. Safe to share between threads: who asks for a folder that another lists, waits for it."""

    open: Opened = fsspec.core.url_to_fs
    calls: int = 0
    """Listings that file systems were asked for."""
    _kept: "OrderedDict[str, Future[Files]]" = field(default_factory=OrderedDict)
    _sizes: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def files(self, pattern: str) -> Files:
        """The files of a pattern, none of them where there is no such folder; a path without a pattern is one file.

        Errors name the file and the field, as of `recmesh.data.files`.
        """
        with naming(pattern):
            fs, path = self.open(pattern)
            folder, _, name = path.rpartition("/")
            if _MAGIC.search(folder) or "**" in name:
                return self._once(pattern, lambda: self._matched(fs, path))
            return matching(self._once(fs.unstrip_protocol(folder), lambda: self._listed(fs, folder)), name)

    def table(self, source: Source, partition: Mapping[str, str]) -> Files:
        """The files of a table's newest snapshot that are of the partition."""
        key = f"{source.files[0]} {source.version} {sorted(partition.items())}"

        def listed() -> Files:
            found = table_files(source, partition=partition)
            sizes, tags = [file.size_bytes for file in found], [file.etag for file in found]
            return Files.of([file.uri for file in found], sizes, tags)

        return self._once(key, listed)

    def is_there(self, path: str) -> bool:
        """Whether there is such a file now; never from a listing of before."""
        with naming(path):
            fs, inside = self.open(path)
            fs.invalidate_cache(inside.rpartition("/")[0])
            return bool(fs.exists(inside))

    def forget(self, patterns: Sequence[str]) -> None:
        """Their folders, and tables of these names, may have changed: they are listed anew when next asked for."""
        for pattern in patterns:
            fs, path = self.open(pattern)
            folder = path.rpartition("/")[0]
            with self._lock:
                tables = [key for key in self._kept if key.startswith(f"{pattern} ")]
                for key in (pattern, fs.unstrip_protocol(folder), *tables):
                    self._kept.pop(key, None)
                    self._sizes.pop(key, None)
            fs.invalidate_cache(folder)

    def _matched(self, fs: Any, path: str) -> Files:
        fs.invalidate_cache()                   # of what file systems keep themselves: which folders, nobody knows
        return _columns(fs, fs.glob(path, detail=True).values())

    def _listed(self, fs: Any, folder: str) -> Files:
        fs.invalidate_cache(folder)
        try:
            return _columns(fs, fs.ls(folder, detail=True))
        except (FileNotFoundError, NotADirectoryError):
            return Files.of((), (), ())

    def _once(self, key: str, listed: Callable[[], Files]) -> Files:
        with self._lock:
            known, mine = self._kept.get(key), Future[Files]()
            if known is None:
                self._kept[key] = mine
                self.calls += 1
            else:
                self._kept.move_to_end(key)
        if known is not None:
            return known.result()
        try:
            files = listed()
        except BaseException as error:
            with self._lock:
                self._kept.pop(key, None)
            mine.set_exception(error)
            raise
        mine.set_result(files)
        self._bound(key, len(files))
        return files

    def _bound(self, newest: str, count: int) -> None:
        with self._lock:
            if newest not in self._kept:        # forgotten while it was made
                return
            self._sizes[newest] = count
            for key in [key for key in self._kept if key != newest and self._kept[key].done()]:
                if sum(self._sizes.values()) <= KEPT_FILES:
                    break
                self._kept.pop(key)
                self._sizes.pop(key, None)


def matching(files: Files, name: str) -> Files:
    """Those of one folder whose last part is as the pattern says.

    Names are sorted, so what stands before the first wildcard is a range; an end alone needs no pattern machine.
    """
    if not len(files):
        return files
    folder = files.uris[0].as_py().rpartition("/")[0]
    magic = _MAGIC.search(name)
    begin = name[: magic.start()] if magic else name
    lo = _place(files, f"{folder}/{begin}") if begin else 0
    if magic is None:
        return files.part(lo, lo + (lo < len(files) and files.uris[lo].as_py() == f"{folder}/{name}"))
    hi = _place(files, f"{folder}/{begin}\U0010ffff") if begin else len(files)
    files, rest = files.part(lo, hi), name[magic.start() :]
    if rest == "*":
        return files
    end = rest[1:]
    if rest.startswith("*") and not _MAGIC.search(end):
        shortest = len(folder) + 1 + len(begin) + len(end)
        fits = pc.and_(pc.ends_with(files.uris, end), pc.greater_equal(pc.utf8_length(files.uris), shortest))
        fitting = fits.to_numpy(zero_copy_only=False)
    else:
        is_like = re.compile(fnmatch.translate(name)).match
        fitting = np.array([is_like(uri, len(folder) + 1) is not None for uri in files.uris.to_pylist()], bool)
    return files if fitting.all() else files.take(np.flatnonzero(fitting))


def _place(files: Files, text: str) -> int:
    """The first file that does not sort before the text."""
    return bisect_left(files.uris, text, key=lambda uri: str(uri.as_py()))


def _columns(fs: Any, details: "Iterable[Mapping[str, Any]]") -> Files:
    """Files, not folders, in name order."""
    found = [each for each in details if each["type"] != "directory"]
    if not found:
        return Files.of((), (), ())
    if not tells_all(fs, found[0]):
        found = [fs.info(each["name"]) for each in found]
    first = found[0]["name"]
    prefix = "" if isinstance(fs, LocalFileSystem) else fs.unstrip_protocol(first).removesuffix(first)
    uris = _strings([each["name"] for each in found])
    if prefix:
        uris = pc.binary_join_element_wise(pa.scalar(prefix, uris.type), uris, pa.scalar("", uris.type))
    sizes = np.array([each["size"] or 0 for each in found], np.int64)
    files = Files(uris, sizes, _tags(fs, found))
    return files.take(pc.sort_indices(uris).to_numpy().astype(np.int64))


def _tags(fs: Any, found: Sequence[Mapping[str, Any]]) -> pa.LargeStringArray:
    """As `tag_of` each; most file systems' tags are plain text."""
    key = tag_key(fs, found[0])
    tags = [each.get(key) for each in found]
    if set(map(type, tags)) == {str}:
        plain = _strings(tags)
        if not pc.any(pc.or_(pc.equal(plain, ""), pc.starts_with(plain, '"'))).as_py():
            return plain
    return _strings(tag_of(fs, each["name"], each) for each in found)
