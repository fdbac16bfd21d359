"""Listings of folders: each is asked for once, however many patterns, sources and streams need it.

A listing is columns, not objects: a folder of an hour may have a hundred thousand files.
"""

import fnmatch
import re
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from recmesh.data.files import FileInfo, naming, tag_key, tag_of, tells_all
from recmesh.data.tables import table_files
from recmesh.spec.dataset import Source

KEPT_FILES = 500_000
"""Files of listings that are kept, of all folders together; the newest listing always is."""
_MAGIC = re.compile(r"[*?\[]")

Opened = Callable[[str], tuple[Any, str]]
"""A URL -> its file system, and the path there."""


@dataclass(frozen=True, slots=True)
class Files:
    """Files in name order, by columns."""

    uris: Sequence[str]
    sizes: Sequence[int]
    tags: Sequence[str]

    def __len__(self) -> int:
        return len(self.uris)

    def part(self, lo: int, hi: int) -> "Files":
        """Files [lo, hi)."""
        return self if (lo, hi) == (0, len(self)) else Files(self.uris[lo:hi], self.sizes[lo:hi], self.tags[lo:hi])

    def take(self, order: Sequence[int]) -> "Files":
        """File i of the answer is file order[i] of this."""
        return Files([self.uris[i] for i in order], [self.sizes[i] for i in order], [self.tags[i] for i in order])

    def infos(self, lo: int, hi: int) -> list[FileInfo]:
        """Files [lo, hi)."""
        parts = zip(self.uris[lo:hi], self.sizes[lo:hi], self.tags[lo:hi], strict=True)
        return [FileInfo(uri, size, tag) for uri, size, tag in parts]


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
            return Files([file.uri for file in found], sizes, tags)

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
            return Files((), (), ())

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

    Names are sorted, so what stands before the first wildcard is a range; an end alone needs no pattern machine, which
    costs five times more.
    """
    if not len(files):
        return files
    folder = files.uris[0].rpartition("/")[0]
    magic = _MAGIC.search(name)
    begin = name[: magic.start()] if magic else name
    lo = bisect_left(files.uris, f"{folder}/{begin}") if begin else 0
    hi = bisect_right(files.uris, f"{folder}/{begin}\U0010ffff", lo) if magic and begin else len(files)
    if magic is None:
        return files.part(lo, lo + (lo < len(files) and files.uris[lo] == f"{folder}/{name}"))
    rest = name[magic.start() :]
    if rest == "*":
        return files.part(lo, hi)
    end = rest[1:]
    if rest.startswith("*") and not _MAGIC.search(end):
        within = files.uris[lo:hi]
        shortest = len(folder) + 1 + len(begin) + len(end)
        if all(uri.endswith(end) for uri in within) and len(min(within, key=len, default="")) >= shortest:
            return files.part(lo, hi)
        fitting = [i for i, uri in enumerate(within, lo) if uri.endswith(end) and len(uri) >= shortest]
    else:
        fits = re.compile(fnmatch.translate(name)).match
        fitting = [i for i in range(lo, hi) if fits(files.uris[i], len(folder) + 1)]
    return files.take(fitting)


def _columns(fs: Any, details: "Iterable[Mapping[str, Any]]") -> Files:
    """Files, not folders, in name order."""
    found = [each for each in details if each["type"] != "directory"]
    if not found:
        return Files((), (), ())
    found.sort(key=itemgetter("name"))
    if not tells_all(fs, found[0]):
        found = [fs.info(each["name"]) for each in found]
    first = found[0]["name"]
    prefix = "" if isinstance(fs, LocalFileSystem) else fs.unstrip_protocol(first).removesuffix(first)
    uris = [prefix + each["name"] for each in found] if prefix else [each["name"] for each in found]
    key = tag_key(fs, found[0])
    tags: list[Any] = [each.get(key) for each in found]
    if not all(isinstance(tag, str) and tag and tag[0] != '"' for tag in tags):
        tags = [tag_of(fs, each["name"], each) for each in found]
    return Files(uris, [int(each["size"] or 0) for each in found], tags)
