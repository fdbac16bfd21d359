"""How files and messages share a line: the rules alone."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from recmesh.data.records import FileSlice, TaskRecord
from recmesh.formats import IntervalSet
from services.shardsvc.domain import alignment
from services.shardsvc.domain.line import Line


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 100_000), max_size=8), st.integers(1, 5000))
def test_shares_are_bounded_proportional_and_never_idle(waiting: dict[str, int], most: int) -> None:
    taken = alignment.shares(waiting, most=most)
    assert all(0 < taken[key] <= min(waiting[key], most) for key in taken)
    assert set(taken) == {key for key, count in waiting.items() if count}
    longest = max(waiting.values(), default=0)
    for key, count in taken.items():
        share = waiting[key] * min(1.0, most / longest)
        assert share - 1e-6 <= count <= max(share + 1, alignment.LEAST_ROWS)


def test_a_topic_of_twice_the_weight_gives_twice_as_much_of_what_waits() -> None:
    taken = alignment.shares({"a": 50_000, "b": 50_000, "c": 300}, {"a": 2.0, "b": 1.0}, most=4_000)
    assert taken == {"a": 4_000, "b": 2_000, "c": alignment.LEAST_ROWS}
    assert alignment.shares({"a": 100, "b": 50_000}, {"a": 1e6}, most=4_000) == {"a": 100, "b": 100}


def line_of(*rows: tuple[str, int, int]) -> Line:
    """Tasks one after another: partition, first offset, rows."""
    records, base = [], 0
    for uri, first, count in rows:
        records.append(TaskRecord(0, 0, base, count, 0, 0, FileSlice(uri, 0, "", first, count, view=1)))
        base += count
    return Line(records)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), max_size=12), st.data())
def test_nothing_before_a_committed_offset_is_ever_trained_again(pieces: list[tuple[int, int]], data: Any) -> None:
    ends = [1, 1, 1]
    rows = []
    for partition, count in pieces:
        rows.append((f"kafka:t/{partition}", ends[partition], count))
        ends[partition] += count
    line = line_of(*rows)
    done = IntervalSet()
    for lo in data.draw(st.lists(st.integers(0, line.end), max_size=6)):
        hi = min(line.end, lo + data.draw(st.integers(1, 20)))
        if lo < hi:
            done.add(lo, hi)
    kept = alignment.unfinished(line, done)
    offsets: dict[tuple[int, str], list[int]] = {}
    known = {position for lo, hi in done.pairs() for position in range(lo, hi)}
    for record in line.records:
        assert record.file is not None
        for row in range(record.rows):
            if record.base + row not in known:
                offsets.setdefault((1, record.file.uri), []).append(record.file.first_row)
    assert kept == {place: min(found) for place, found in offsets.items()}


def test_files_are_released_with_the_time_that_topics_have_passed() -> None:
    assert alignment.is_released(0, 100, elapsed=0.0), "the first group is not held back"
    assert not alignment.is_released(30, 100, elapsed=0.2) and alignment.is_released(30, 100, elapsed=0.3)
    assert alignment.is_released(99, 100, elapsed=1.0)
