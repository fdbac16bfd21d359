"""The task graph of a dataset of streams: what is read in which window, in which order (Primus' DTGG).

Four operations make a window. The *timer* says that it has come to its end, by its marker or by the clock. A *source*
lists its files (sources work in parallel, and those that need the same folder share its listing) and groups them. The
*joiner* merges the groups of all sources by their weights. The *sink* keeps windows in order, however early they were
listed.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from recmesh.data.faults import in_stream, wrong
from recmesh.data.filecolumns import Files
from recmesh.data.files import FileInfo
from recmesh.data.listing import Lister
from recmesh.data.windows import Turn, active, filled, shown, turns
from recmesh.formats import mix, permutation
from recmesh.spec.dataset import TABLE_FORMATS, DatasetSpec, Stream

GROUP_BYTES = 128 << 20
GROUP_FILES = 256
"""Files are indexed, shuffled and written to the task log by groups of so many, or so much."""
AHEAD = 4
"""Windows, complete by then, that are listed while the one before them is served, where all are of the past."""
MOST_MARKERS = 1024
_GROUPS = 0x67726F75


class Group(NamedTuple):
    """Files of one source that follow each other."""

    view: int
    """Which of `DatasetSpec.views` reads them."""
    files: Files
    lo: int
    hi: int
    size_bytes: int

    @property
    def uris(self) -> list[str]:
        """The files' names."""
        return [*self.files.uris[self.lo : self.hi].to_pylist()]

    @property
    def infos(self) -> list[FileInfo]:
        """The files."""
        return self.files.infos(self.lo, self.hi)


@dataclass(frozen=True, slots=True)
class Window:
    """Everything that a turn serves, in order."""

    turn: Turn
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class NotYet:
    """A window that has not come to its end."""

    turn: Turn
    why: str
    look_at: float
    """When to look again, unix seconds."""


class TaskGraph:
    """The windows of one dataset, as far as they are files; shardsvc follows topics.

    For one caller at a time; it works ahead in threads of its own.
    """

    def __init__(
        self, spec: DatasetSpec, *, seed: int, lister: Lister | None = None, threads: int = 4, patience_s: float = 5.0
    ) -> None:
        """`patience_s`: between two looks for a marker."""
        self._spec, self._seed, self._patience_s = spec, seed, patience_s
        self._lister = lister or Lister()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="taskgraph")
        self._views = _first_views(spec)
        self._sources: dict[tuple[Turn, int], Future[list[Group]]] = {}
        self._markers: set[str] = set()
        """Those of the windows ahead that were seen."""

    def windows(self) -> Iterator[Window]:
        """All windows of a dataset that ends; InvalidArgument where a marker is missing."""
        for turn in turns(self._spec):
            found = self.window(turn, now=float("inf"))
            if isinstance(found, NotYet):
                raise wrong("data.streams", f"{found.turn}: {found.why}")
            yield found

    def window(self, turn: Turn, *, now: float) -> Window | NotYet:
        """A window, or why it is not there yet. Errors as of `Lister`, and InvalidArgument where it has no files."""
        waits = self._timer(turn, now)
        if waits is not None:
            return waits
        if now != float("inf"):                 # what was listed before it was complete may lack files
            stream = self._spec.streams[turn.stream]
            for index in _of_files(stream, turn.begin):
                source = stream.sources[index]
                self._lister.forget([filled(pattern, turn.begin - source.offset) for pattern in source.files])
            return self.listed(turn)
        following = islice(turns(self._spec, after=turn), AHEAD)
        return self.listed(turn, [each for each in following if self._timer(each, now) is None])

    def listed(self, turn: Turn, ahead: Iterable[Turn] = ()) -> Window:
        """A window as its files are now, whether it is complete or not; those that are ahead are listed meanwhile."""
        for each in (turn, *ahead):
            for index in _shared_last(self._spec.streams[each.stream], each.begin):
                if (each, index) not in self._sources:
                    self._sources[each, index] = self._pool.submit(self._source, each, index)
        sources = _of_files(self._spec.streams[turn.stream], turn.begin)
        try:
            groups = [self._sources[turn, index].result() for index in sources]
        finally:
            for index in sources:
                self._sources.pop((turn, index), None)
            if len(self._markers) > MOST_MARKERS:
                self._markers.clear()
        stream = self._spec.streams[turn.stream].sources
        return Window(turn, self._joined(turn, groups, [stream[index].weight for index in sources]))

    def close(self) -> None:
        """Takes no more work; listings under way are abandoned."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    # ---- the operations

    def _timer(self, turn: Turn, now: float) -> NotYet | None:
        """By the marker where a source has one, else by the clock."""
        stream = self._spec.streams[turn.stream]
        for index in _of_files(stream, turn.begin):
            source = stream.sources[index]
            begin = turn.begin - source.offset
            if source.done:
                marker = filled(source.done, begin)
                if marker not in self._markers and not self._lister.is_there(marker):
                    look_at = max(begin + stream.window, now + self._patience_s) if now != float("inf") else now
                    return NotYet(turn, f"source {index} waits for {marker}", look_at)
                self._markers.add(marker)
            elif now < (ends := begin + stream.window + source.lateness):
                return NotYet(turn, f"source {index} is complete at {shown(ends)}", ends)
        return None

    def _source(self, turn: Turn, index: int) -> list[Group]:
        with in_stream(turn.stream, index):
            return self._groups(turn, index)

    def _groups(self, turn: Turn, index: int) -> list[Group]:
        source = self._spec.streams[turn.stream].sources[index]
        begin, view = turn.begin - source.offset, self._views[turn.stream] + index
        if source.format in TABLE_FORMATS:
            partition = {key: filled(value, begin) for key, value in source.partition.items()}
            found = [self._lister.table(source, partition)]
            where = f"{source.files[0]} with {partition}"
        else:
            found = [self._lister.files(filled(pattern, begin)) for pattern in source.files]
            where = filled(source.files[0], begin)
        if not any(map(len, found)) and not source.may_be_empty:
            self._lister.forget([filled(pattern, begin) for pattern in source.files])       # they may come yet
            raise wrong("data.source.files", f"no file of {shown(begin)} matches {where}")
        uris = [uri for files in found for uri in files.uris.to_pylist()] if len(found) > 1 else []
        if len(set(uris)) < len(uris):
            twice = next(uri for at, uri in enumerate(uris) if uri in uris[:at])
            raise wrong("data.source.files", f"{twice} matches two patterns")
        return [group for files in found for group in grouped(view, files)]

    def _joined(
        self, turn: Turn, sources: Sequence[Sequence[Group]], weights: Sequence[float | None]
    ) -> tuple[Group, ...]:
        if self._spec.shuffle:
            seed = mix(mix(self._seed ^ _GROUPS) ^ turn.begin) ^ turn.stream
            sources = [
                [groups[i] for i in permutation(mix(seed ^ index), len(groups)).tolist()]
                for index, groups in enumerate(sources)
            ]
        return joined(sources, weights)


def _of_files(stream: Stream, begin: int) -> list[int]:
    """The sources of files that have data in the window."""
    return [index for index in active(stream, begin) if not stream.sources[index].is_topic]


def _shared_last(stream: Stream, begin: int) -> list[int]:
    """The same, but who needs folders of others comes after them: threads list, and do not wait for listings."""
    known: set[str] = set()
    order: list[tuple[bool, int]] = []
    for index in _of_files(stream, begin):
        folders = {pattern.rpartition("/")[0] for pattern in stream.sources[index].files}
        order.append((folders <= known, index))
        known |= folders
    return [index for _, index in sorted(order)]


def grouped(view: int, files: Files) -> list[Group]:
    """Runs of at most `GROUP_BYTES`, or one file that is larger, and at most `GROUP_FILES`."""
    ends: list[int] = np.cumsum(files.sizes).tolist()
    groups, lo, before = [], 0, 0
    while lo < len(ends):
        hi = bisect_right(ends, before + GROUP_BYTES, lo, min(lo + GROUP_FILES, len(ends)))
        if hi == lo:
            hi = lo + 1
        groups.append(Group(view, files, lo, hi, ends[hi - 1] - before))
        lo, before = hi, ends[hi - 1]
    return groups


def joined(sources: Sequence[Sequence[Group]], weights: Sequence[float | None]) -> tuple[Group, ...]:
    """All groups, those of each source in their order, merged by weighted fair queueing over bytes.

    Virtual time of a group is what its source has served up to its end, over the source's weight; without weights, over
    all that the source has, so that all end together. Equal times go by the source.
    """
    if len(sources) == 1:
        return tuple(sources[0])
    times: list[npt.NDArray[np.float64]] = []
    for groups, weight in zip(sources, weights, strict=True):
        served = np.cumsum(np.maximum([group.size_bytes for group in groups], 1), dtype=np.float64)
        times.append(served / (weight or (served[-1] if len(served) else 1.0)))
    everything = [group for groups in sources for group in groups]
    if not everything:
        return ()
    return tuple(map(everything.__getitem__, np.argsort(np.concatenate(times), kind="stable").tolist()))


def _first_views(spec: DatasetSpec) -> list[int]:
    """Of each stream, the place of its first source among the dataset's views."""
    counts = np.cumsum([0, *(len(stream.sources) for stream in spec.streams)])
    return [int(count) for count in counts[:-1]]
