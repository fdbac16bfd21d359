import csv
import gzip
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recmesh.data import inflate
from recmesh.data.fileformats import lines
from recmesh.data.fileformats.lines import cut, part, scan
from recmesh.data.inflate import Inflated, Points

FIELDS = st.text(alphabet='ab,"\n\r x', max_size=6)


def spans(text: bytes, *, quoted: bool, block: int) -> list[tuple[int, int]]:
    saved, lines._BLOCK = lines._BLOCK, block
    try:
        found = list(scan(lambda lo, hi: text[lo:hi], 0, None, delimiter=",", quoted=quoted))
    finally:
        lines._BLOCK = saved
    return [(int(a), int(b)) for starts, ends in found for a, b in zip(starts, ends, strict=True)]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(FIELDS, min_size=2, max_size=3), max_size=8), st.integers(1, 40), st.booleans())
def test_records_with_quoted_line_breaks_are_found_as_the_csv_module_writes_them(
    rows: list[list[str]], block: int, final_break: bool
) -> None:
    sink = io.StringIO(newline="")
    pieces: list[str] = []
    for row in rows:
        csv.writer(sink, lineterminator="\n", quoting=csv.QUOTE_ALL).writerow(row)
        pieces.append(sink.getvalue())
        sink = io.StringIO(newline="")
    text = "".join(pieces)
    text = text if final_break else text.removesuffix("\n")
    want, at = [], 0
    for piece in pieces:
        want.append((at, min(at + len(piece), len(text))))
        at += len(piece)
    assert spans(text.encode(), quoted=True, block=block) == want


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(["a", "ab,c", "", "\r", "x,\r"]), max_size=12), st.integers(1, 9), st.booleans())
def test_empty_lines_are_no_records_wherever_blocks_end(rows: list[str], block: int, final_break: bool) -> None:
    text = "\n".join(rows) + ("\n" if final_break else "")
    got = [text[a:b].strip("\r\n") for a, b in spans(text.encode(), quoted=False, block=block)]
    assert got == [row.strip("\r") for row in rows if row.strip("\r")]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 60), st.integers(1, 20), st.data())
def test_ranges_and_their_parts_hold_the_records_they_say(rows: int, each: int, data: st.DataObject) -> None:
    text = b"".join(b"%d,%s\n\n" % (i, b"x" * (i % 5)) for i in range(rows))

    def read(lo: int, hi: int) -> bytes:
        return text[lo:hi]

    ranges = cut(read, 0, rows_each=each, delimiter=",", quoted=False)
    assert sum(found.rows for found in ranges) == rows
    for found in ranges:
        records = text[found.lo : found.hi].split()
        assert [int(record.split(b",")[0]) for record in records] == list(
            range(found.first_row, found.first_row + found.rows)
        )
        lo = data.draw(st.integers(0, found.rows - 1))
        hi = data.draw(st.integers(lo + 1, found.rows))
        some = part(read, found, lo, hi, delimiter=",", quoted=False)
        assert text[some.lo : some.hi].split() == records[lo:hi]


@pytest.mark.parametrize("members", [1, 3])
def test_gzip_is_read_at_any_offset(members: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflate, "_POINT_EVERY", 50_000)
    monkeypatch.setattr(inflate, "_CHUNK", 4_000)
    rng = np.random.default_rng(3)
    text = rng.integers(0, 60, 600_000, dtype=np.uint8).tobytes()
    size = len(text) // members
    packed = b"".join(gzip.compress(text[i * size : (i + 1) * size]) for i in range(members)) + b"\0" * 512
    points = Points()
    stream = Inflated(io.BytesIO(packed), points)
    for _ in range(60):
        lo = int(rng.integers(0, len(text)))
        hi = int(rng.integers(lo, min(len(text), lo + 100_000) + 1))
        assert stream.read(lo, hi) == text[lo:hi]
    assert stream.read(len(text) - 5, len(text) + 100) == text[-5:]
    assert Inflated(io.BytesIO(packed), points).read(300_000, 300_010) == text[300_000:300_010]
    assert len(points._points) > 5


def test_a_torn_gzip_file_is_an_error_and_not_a_shorter_text() -> None:
    packed = gzip.compress(bytes(100_000) + b"end")
    with pytest.raises(EOFError):
        Inflated(io.BytesIO(packed[:-9]), Points()).read(0, 200_000)
