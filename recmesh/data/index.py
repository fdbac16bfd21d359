"""What a dataset holds: columns, rows, and the slices that become tasks."""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from recmesh.data.faults import in_stream, wrong
from recmesh.data.fileformats import FileFormat, Indexed, format_named
from recmesh.data.files import FileInfo, resolve_files
from recmesh.data.records import FileSlice
from recmesh.data.schema import Kind, check_agreement, check_columns
from recmesh.data.slices import Slices
from recmesh.data.tables import table_files
from recmesh.data.taskgraph import Group, NotYet, TaskGraph
from recmesh.data.topics import topic_of
from recmesh.data.topics.reader import kinds_of
from recmesh.data.windows import Turn, active, begins
from recmesh.runtime.errors import DataLoss, InvalidArgument, NotFound
from recmesh.spec.dataset import TABLE_FORMATS, DatasetSpec, Source, SourceSpec, StreamSource

_THREADS = 8
_AHEAD = 4 * _THREADS
"""Files whose slices, which are objects then, may wait until those before them are taken."""


@dataclass(frozen=True, slots=True)
class Index:
    """A dataset, resolved and checked."""

    files: tuple[FileInfo, ...]
    columns: Mapping[str, Kind]
    """Of the first file."""
    slices: Sequence[FileSlice]
    """In file order, of streams in the order in which they are served; at most `task_rows` rows each. Of a dataset
    without streams they are `Slices`."""

    @property
    def rows(self) -> int:
        """Exact."""
        return self.slices.rows if isinstance(self.slices, Slices) else sum(piece.rows for piece in self.slices)

    @property
    def size_bytes(self) -> int:
        """Of the files, as stored."""
        return sum(file.size_bytes for file in self.files)


def index_dataset(spec: DatasetSpec, *, seed: int = 0) -> Index:
    """Resolves, checks and counts. Reads footers of Parquet and Arrow, and all of every other format once.

    The seed decides the order of a window's groups of files. Errors: NotFound (no such file), InvalidArgument
    (unreadable, wrong columns, streams that never end) with paths of fields.
    """
    if spec.streams:
        if spec.has_topics:
            raise wrong("data.streams", "have a topic: only a job of a mesh can follow it")
        if spec.endless:
            raise wrong("data.streams", "never end: only a job of a mesh can follow them; give each source an end")
        return _index_windows(spec, seed)
    view = spec.views()[0]
    files = files_of(view.source)
    first, slices = None, Slices()
    for each in _indexed(view, files):
        first = first or each.kinds
        slices.extend(each.slices)
    if view.source.rows is not None:
        slices = Slices(take_share(slices, view.source.rows, view))
    if not slices:
        what = "the files hold" if view.source.rows is None else "this part of the files holds"
        raise wrong("data.source", f"{what} no rows" + (" for which `where` can hold" if spec.where else ""))
    return Index(tuple(files), first or {}, slices)


def files_of(source: Source) -> list[FileInfo]:
    """The files of a source, at least one; of a table those of its snapshot."""
    if source.format not in TABLE_FORMATS:
        return resolve_files(source)
    files = table_files(source)
    if not files:
        raise wrong("data.source.files", f"the snapshot of {source.files[0]} has no files of this partition")
    return files


def preview(spec: DatasetSpec, *, now: float) -> Index:
    """Of streams, some files of the first window of each source: enough to know their columns, and that their paths
    lead somewhere. A window that is not complete yet may hold none, or such as are being written: they say nothing.
    Topics must be there; their columns are those that are declared.
    """
    topics = _topics(spec)
    starts = [source.start for stream in spec.streams for source in stream.sources if not isinstance(source.start, str)]
    spec = starting(spec, lambda stream, source: min(starts, default=now))
    agreement, files, slices, seen = Agreement(spec), list[FileInfo](), list[FileSlice](), set[int]()
    graph = TaskGraph(spec, seed=0)
    try:
        for turn in _first_turns(spec):
            window = graph.window(turn, now=now)
            is_complete = not isinstance(window, NotYet)
            try:
                groups = graph.listed(turn).groups if isinstance(window, NotYet) else window.groups
                for group in groups:
                    if group.view not in seen:
                        slices += agreement.index(group)
                        files += group.infos
                        seen.add(group.view)
            except (InvalidArgument, DataLoss, NotFound):
                if is_complete:
                    raise
    finally:
        graph.close()
    columns = agreement.columns
    for (number, index), view, kinds in topics:
        columns = columns or kinds
        with in_stream(number, index):
            check_agreement(view, columns, kinds, uris=("the first source", "this topic"))
    return Index(tuple(files), columns, tuple(slices))


def starting(spec: DatasetSpec, moment: Callable[[int, int], float]) -> DatasetSpec:
    """The dataset with a moment, by stream and source, for each start that is none."""
    streams = [
        stream.model_copy(update={"sources": [
            source.resolved(moment(s, i)) if isinstance(source.start, str) else source
            for i, source in enumerate(stream.sources)
        ]})
        for s, stream in enumerate(spec.streams)
    ]
    return spec.model_copy(update={"streams": streams})


def _topics(spec: DatasetSpec) -> list[tuple[tuple[int, int], SourceSpec, Mapping[str, Kind]]]:
    """Sees to it that all are there, with the columns that are needed: their places, views and columns."""
    found = []
    places = [(s, i) for s, stream in enumerate(spec.streams) for i in range(len(stream.sources))]
    for view, place in zip(spec.views(), places, strict=bool(places)):
        source = view.source
        if isinstance(source, StreamSource) and source.is_topic:
            with in_stream(*place):
                kinds = kinds_of(view)
                check_columns(view, kinds, where=source.jetstream or source.kafka)
                topic_of(source).partitions()
            found.append((place, view, kinds))
    return found


def _index_windows(spec: DatasetSpec, seed: int) -> Index:
    """All windows of all streams."""
    agreement, files, slices = Agreement(spec), list[FileInfo](), list[FileSlice]()
    graph = TaskGraph(spec, seed=seed)
    try:
        for window in graph.windows():
            for group in window.groups:
                files += group.infos
                slices += agreement.index(group)
    finally:
        graph.close()
    if not slices:
        raise wrong("data.streams", "their windows hold no rows")
    return Index(tuple(files), agreement.columns, tuple(slices))


def _first_turns(spec: DatasetSpec) -> "list[Turn]":
    """Of each stream, the first windows in which each of its sources has data."""
    found = set()
    for number, stream in enumerate(spec.streams):
        seen = Counter[int]()
        for begin in begins(stream):
            sources = active(stream, begin)
            if not all(seen[index] for index in sources):
                found.add(Turn(begin, number))
            seen.update(sources)
            if all(seen[index] for index in range(len(stream.sources))):
                break
    return sorted(found)


class Agreement:
    """Indexes groups of files as they come, and sees to it that all of a dataset agree on types. For one thread."""

    def __init__(self, spec: DatasetSpec) -> None:
        self._views = spec.views()
        self._places = [
            (number, index) for number, stream in enumerate(spec.streams) for index in range(len(stream.sources))
        ]
        self._first: tuple[str, Mapping[str, Kind]] | None = None

    @property
    def columns(self) -> Mapping[str, Kind]:
        """Of the first file."""
        return self._first[1] if self._first else {}

    def index(self, group: Group) -> list[FileSlice]:
        """The slices of a group, in order. Errors as of `index_dataset`."""
        slices = self._indexed(group.view, group.infos)
        return [replace(piece, view=group.view) for piece in slices] if group.view else slices

    def recall(self, piece: FileSlice) -> None:
        """The first file of those that were indexed before, by whomever. DataLoss, NotFound: it is gone, or another."""
        if self._first is None:
            self._indexed(piece.view, [FileInfo(piece.uri, piece.size_bytes, piece.etag)])

    def _indexed(self, view: int, files: Sequence[FileInfo]) -> list[FileSlice]:
        with in_stream(*self._places[view]):
            kinds, slices = index_files(self._views[view], files)
            if self._first is None:
                self._first = files[0].uri, kinds
            check_agreement(self._views[view], self._first[1], kinds, uris=(self._first[0], files[0].uri))
        return slices


def index_files(spec: SourceSpec, files: Sequence[FileInfo]) -> tuple[Mapping[str, Kind], list[FileSlice]]:
    """Columns of the first file, and the slices of all, in order; the files must agree."""
    indexed = list(_indexed(spec, files))
    return indexed[0].kinds, [piece for each in indexed for piece in each.slices]


def _indexed(spec: SourceSpec, files: Sequence[FileInfo]) -> Iterator[Indexed]:
    """Each file in order, once it agrees with the first. Few are held at once."""
    kind, following = format_named(spec.source.format), deque[Future[Indexed]]()
    first: Mapping[str, Kind] | None = None
    with ThreadPoolExecutor(min(_THREADS, len(files))) as pool:
        try:
            at = 0
            for file in files:
                while at < len(files) and len(following) < _AHEAD:
                    following.append(pool.submit(_index_file, kind, files[at], spec))
                    at += 1
                each = following.popleft().result()
                if first is None:
                    first = each.kinds
                check_agreement(spec, first, each.kinds, uris=(files[0].uri, file.uri))
                yield each
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def index_tasks(spec: DatasetSpec, *, seed: int = 0) -> list[FileSlice]:
    """The slices of a dataset, in file order; of streams, in that of the seed."""
    return list(index_dataset(spec, seed=seed).slices)


def _index_file(kind: FileFormat, file: FileInfo, spec: SourceSpec) -> Indexed:
    found = kind.index(file, spec)
    check_columns(spec, found.kinds, where=file.uri)
    return found


def take_share(
    slices: Sequence[FileSlice], share: tuple[float, float], spec: SourceSpec
) -> Iterator[FileSlice]:
    """Rows [share0, share1) of all; neighbours such as [0, 0.8] and [0.8, 1] are disjoint and complete."""
    kind = format_named(spec.source.format)
    total = sum(piece.rows for piece in slices)
    lo, hi = (round(bound * total) for bound in share)
    start = 0
    for piece in slices:
        first, last = max(lo - start, 0), min(hi - start, piece.rows)
        if first < last:
            yield piece if (first, last) == (0, piece.rows) else kind.trim(piece, first, last, spec)
        start += piece.rows
