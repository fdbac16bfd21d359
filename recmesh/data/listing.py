"""Listings of folders: each is asked for once, however many patterns, sources and streams need it.

Who lists many files has processes beside this one list them (`listing_processes`): one interpreter makes a million
dictionaries of files per second, however many threads it has.
"""

import fnmatch
import re
import threading
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import fsspec
import numpy as np
import pyarrow.compute as pc

from recmesh.data.filecolumns import WAYS, Files, Way
from recmesh.data.files import FileInfo, naming
from recmesh.data.listing_processes import ListingProcesses, beside, written
from recmesh.data.tables import table_files
from recmesh.spec.dataset import Source

KEPT_FILES = 500_000
"""Files of listings that are kept, of all folders together; the newest listing always is."""
MANY_FILES = 300_000
"""Listed by one lister in a row: more of them are for other processes. They take this one .3 s, and a start as much."""
IN_A_ROW_S = 60.0
_MAGIC = re.compile(r"[*?\[]")

Opened = Callable[[str], tuple[Any, str]]
"""A URL -> its file system, and the path there."""


@dataclass
class Lister:
    """Lists files by pattern. Safe to share between threads: who asks for a folder that another lists, waits for it."""

    open: Opened = fsspec.core.url_to_fs
    calls: int = 0
    """Listings that file systems were asked for."""
    processes: ListingProcesses = beside
    many_files: int = MANY_FILES
    _row: tuple[float, int] = (0.0, 0)
    """When this process listed last, and how many files so far in a row."""
    _kept: "OrderedDict[str, Future[Files]]" = field(default_factory=OrderedDict)
    _sizes: dict[str, int] = field(default_factory=dict)
    _witnesses: dict[str, FileInfo] = field(default_factory=dict)
    """A file that this process saw, by its file system as it is written down."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def files(self, pattern: str) -> Files:
        """The files of a pattern, none of them where there is no such folder; a path without a pattern is one file.

        Errors name the file and the field, as of `recmesh.data.files`.
        """
        with naming(pattern):
            fs, path = self.open(pattern)
            folder, _, name = path.rpartition("/")
            if _MAGIC.search(folder) or "**" in name:
                return self._once(pattern, lambda: self._listed(fs, "pattern", path))
            return matching(self._once(fs.unstrip_protocol(folder), lambda: self._listed(fs, "folder", folder)), name)

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

    def _listed(self, fs: Any, way: Way, path: str) -> Files:
        began, name = time.monotonic(), written(fs)
        with self._lock:
            last, count = self._row
            are_many = count >= self.many_files and began < last + IN_A_ROW_S
            witness = self._witnesses.get(name) if are_many and name is not None else None
        if witness is not None and name is not None:
            fs.invalidate_cache(*([path] if way == "folder" else []))       # what it had kept may be older
            found = self.processes.ask(name, way, path, witness=witness)
            if found is not None:
                with self._lock:
                    self._row = time.monotonic(), self._row[1]
                return found
        files = WAYS[way](fs, path)
        with self._lock:
            last, count = self._row
            self._row = time.monotonic(), len(files) + (count if began < last + IN_A_ROW_S else 0)
            if len(files) and name is not None:
                self._witnesses[name] = files.infos(0, 1)[0]
        return files

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
