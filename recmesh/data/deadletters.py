"""Records that cannot be read: found one by one, written aside with reason and place, and counted under a limit."""

import hashlib
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import fsspec
import orjson

from recmesh.data.faults import wrong
from recmesh.data.records import FileSlice
from recmesh.runtime.errors import InvalidArgument, MeshError, Unavailable
from recmesh.runtime.telemetry import get_logger
from recmesh.spec.dataset import BadRecords

_log = get_logger(__name__)
T = TypeVar("T")
_PLACE = re.compile(r"(?: in row \d+| Row #\d+:)")
"""Where a parser says that it was, within the part that it was given; the letter has the record's own place."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A record that cannot be read."""

    row: int
    """Of its slice."""
    reason: str


@dataclass(frozen=True, slots=True)
class Sifted(Generic[T]):
    """What could be read of a slice, in order, and what could not."""

    parts: Sequence[tuple[int, T]]
    """(first row of the part within the slice, the part)"""
    letters: Sequence[Letter]


def sift(
    piece: FileSlice, decode: Callable[[FileSlice], T], trim: Callable[[FileSlice, int, int], FileSlice], *, most: int
) -> Sifted[T]:
    """Halves the slice until what cannot be read is single records: of k bad ones, in 2·k·log2(rows) reads, and never
    more than twice its rows.

    Which records are bad depends on the file alone. InvalidArgument, the last one's reason, beyond `most` of them.
    """
    parts: list[tuple[int, T]] = []
    letters: list[Letter] = []

    def read(lo: int, hi: int) -> None:
        try:
            parts.append((lo, decode(piece if (lo, hi) == (0, piece.rows) else trim(piece, lo, hi))))
        except InvalidArgument as error:
            if any(violation.path.startswith("data.where") for violation in error.violations):
                raise                           # the condition is wrong, not the record
            if hi - lo == 1:
                letters.append(Letter(lo, _why(error)))
                if len(letters) > most:
                    raise _TooMany(letters[-1]) from error
                return
            middle = (lo + hi) // 2
            read(lo, middle)
            read(middle, hi)

    try:
        read(0, piece.rows)
    except _TooMany as many:
        last = many.letter
        raise wrong(
            "data.bad_records.limit",
            f"more than {most} records cannot be read; one of them is row {piece.first_row + last.row} of {piece.uri}: "
            f"{last.reason}",
        ) from None
    return Sifted(parts, letters)


class _TooMany(Exception):
    def __init__(self, letter: Letter) -> None:
        super().__init__(letter.reason)
        self.letter = letter


class DeadLetters:
    """Writes what was sifted out, and counts it. Safe to share between threads."""

    def __init__(self, policy: BadRecords) -> None:
        self._policy = policy
        self._seen: set[tuple[str, str, int, int]] = set()
        self._lock = threading.Lock()
        self._count = 0                         # each record once, however often its slice is read

    def put(self, piece: FileSlice, letters: Sequence[Letter]) -> None:
        """Notes the records of a slice. InvalidArgument when there are more than the limit by now."""
        if not letters:
            return
        key = piece.uri, piece.etag, piece.first_row, piece.rows
        with self._lock:
            is_new = key not in self._seen
        if is_new:
            for letter in letters[:3]:
                _log.warning("row %d of %s cannot be read: %s", piece.first_row + letter.row, piece.uri, letter.reason)
            if self._policy.folder:
                self._write(piece, letters)
        with self._lock:
            self._count += 0 if key in self._seen else len(letters)
            self._seen.add(key)
            count = self._count
        if count > self._policy.limit:
            last = letters[-1]
            raise wrong(
                "data.bad_records.limit",
                f"{count} records cannot be read, {self._policy.limit} are allowed; one of them is row "
                f"{piece.first_row + last.row} of {piece.uri}: {last.reason}",
            )

    def _write(self, piece: FileSlice, letters: Sequence[Letter]) -> None:
        """One file for a slice, under the slice's own name: whoever reads it again writes the same."""
        name = hashlib.sha256(f"{piece.uri}\0{piece.etag}\0{piece.first_row}\0{piece.rows}".encode()).hexdigest()[:24]
        path = f"{self._policy.folder.rstrip('/')}/{name}.jsonl"
        lines = [
            orjson.dumps({
                "uri": piece.uri, "row": piece.first_row + letter.row, "reason": letter.reason, "etag": piece.etag,
                "slice_rows": piece.rows, "byte_lo": piece.byte_lo, "byte_hi": piece.byte_hi,
            })
            for letter in letters
        ]
        try:
            fs, inside = fsspec.core.url_to_fs(path)
            fs.makedirs(inside.rpartition("/")[0], exist_ok=True)
            fs.pipe_file(inside, b"\n".join([*lines, b""]))
        except OSError as error:
            raise Unavailable(f"dead letters cannot be written to {path}: {error}") from error


def _why(error: MeshError) -> str:
    reason = error.violations[0].reason if error.violations else error.message
    return _PLACE.sub("", reason)
