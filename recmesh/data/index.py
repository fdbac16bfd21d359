"""What a dataset holds: columns, rows, and the slices that become tasks."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from recmesh.data.faults import wrong
from recmesh.data.fileformats import FileFormat, Indexed, format_named
from recmesh.data.files import FileInfo, resolve_files
from recmesh.data.records import FileSlice
from recmesh.data.schema import Kind, check_agreement, check_columns
from recmesh.spec.dataset import DatasetSpec

_THREADS = 8


@dataclass(frozen=True, slots=True)
class Index:
    """A dataset, resolved and checked."""

    files: tuple[FileInfo, ...]
    columns: Mapping[str, Kind]
    """Of the first file."""
    slices: tuple[FileSlice, ...]
    """In file order; at most `task_rows` rows each."""

    @property
    def rows(self) -> int:
        """Exact."""
        return sum(piece.rows for piece in self.slices)

    @property
    def size_bytes(self) -> int:
        """Of the files, as stored."""
        return sum(file.size_bytes for file in self.files)


def index_dataset(spec: DatasetSpec) -> Index:
    """Resolves, checks and counts. Reads footers of Parquet and Arrow, and all of every other format once.

    Errors: NotFound (no such file), InvalidArgument (unreadable, wrong columns) with paths of fields.
    """
    kind, files = format_named(spec.source.format), resolve_files(spec.source)
    with ThreadPoolExecutor(min(_THREADS, len(files))) as pool:
        indexed = list(pool.map(lambda file: _index_file(kind, file, spec), files))
    first = indexed[0].kinds
    for file, other in zip(files[1:], indexed[1:], strict=True):
        check_agreement(spec, first, other.kinds, uris=(files[0].uri, file.uri))
    slices = [piece for each in indexed for piece in each.slices]
    if spec.source.rows is not None:
        slices = take_share(slices, spec.source.rows, spec)
    if not slices:
        what = "the files hold" if spec.source.rows is None else "this part of the files holds"
        raise wrong("data.source", f"{what} no rows")
    return Index(tuple(files), first, tuple(slices))


def index_tasks(spec: DatasetSpec) -> list[FileSlice]:
    """The slices of a dataset, in file order."""
    return list(index_dataset(spec).slices)


def _index_file(kind: FileFormat, file: FileInfo, spec: DatasetSpec) -> Indexed:
    found = kind.index(file, spec)
    check_columns(spec, found.kinds, where=file.uri)
    return found


def take_share(slices: Iterable[FileSlice], share: tuple[float, float], spec: DatasetSpec) -> list[FileSlice]:
    """Rows [share0, share1) of all; neighbours such as [0, 0.8] and [0.8, 1] are disjoint and complete."""
    pieces, kind = list(slices), format_named(spec.source.format)
    total = sum(piece.rows for piece in pieces)
    lo, hi = (round(bound * total) for bound in share)
    kept: list[FileSlice] = []
    start = 0
    for piece in pieces:
        first, last = max(lo - start, 0), min(hi - start, piece.rows)
        if first < last:
            kept.append(piece if (first, last) == (0, piece.rows) else kind.trim(piece, first, last, spec))
        start += piece.rows
    return kept
