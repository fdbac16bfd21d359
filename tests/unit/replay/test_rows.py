"""Rows of files as messages, their times, their partitions, and when they are due."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recmesh.partitions import fnv1a32, partitions_of, stream_of, subject_of, topic_name
from recmesh.replay.pace import Pace, rounds_apart
from recmesh.replay.resume import There, message_id, number_of, there
from recmesh.replay.rows import as_json, open_rows, times_of
from recmesh.runtime.errors import InvalidArgument

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("values", [
    pa.array([NOON]), pa.array([int(NOON)]), pa.array([int(NOON * 1e3)]), pa.array([int(NOON * 1e6)]),
    pa.array([int(NOON * 1e9)]), pa.array(["2026-11-22T12:00:00"]), pa.array(["2026-11-22T13:00:00+01:00"]),
    pa.array(["2026-11-22T12:00:00Z"]), pa.array([datetime(2026, 11, 22, 12)]),   # noqa: DTZ001 (without a zone)
    pa.array([datetime.fromtimestamp(NOON, UTC)], pa.timestamp("ns", "Europe/Berlin")),
], ids=lambda values: str(values.type) + str(values[0]))
def test_a_time_is_told_in_many_ways(values: pa.Array) -> None:
    assert times_of(pa.table({"t": values}), "t", where="f").tolist() == [NOON]


@pytest.mark.parametrize("values", [["soon"], [None], [float("nan")], [[1.0]]])
def test_what_is_no_time_is_refused_by_its_column(values: list[object]) -> None:
    with pytest.raises(InvalidArgument, match="'t'") as refused:
        times_of(pa.table({"t": values}), "t", where="f")
    assert refused.value.violations[0].path == "time"


@settings(deadline=None)
@given(st.lists(st.text(max_size=20) | st.none(), max_size=50), st.integers(1, 64))
def test_partitions_are_those_of_the_server_s_own_hash(keys: list[str | None], count: int) -> None:
    expected = [fnv1a32((key or "").encode()) % count for key in keys]
    assert partitions_of(pa.array(keys, pa.string()), count).tolist() == expected


def test_the_hash_is_fnv1a_with_32_bits() -> None:
    """Golden, of the algorithm's authors."""
    assert [fnv1a32(text) for text in (b"", b"a", b"foobar")] == [0x811C9DC5, 0xE40C292C, 0xBF9CF968]


def test_numbers_are_keys_by_their_digits() -> None:
    assert partitions_of(pa.array([17, 4]), 8).tolist() == [fnv1a32(b"17") % 8, fnv1a32(b"4") % 8]


def test_rows_are_objects_with_exact_numbers_and_nulls() -> None:
    table = pa.table({
        "i": [1, None], "f": pa.array([0.1, float("nan")], pa.float32()), "s": ["ä", None], "l": [[1, 2], None],
        "t": [datetime(2026, 1, 1, tzinfo=UTC), None],
    })
    first, second = (orjson.loads(text) for text in as_json(table, table.column_names))
    assert first == {"i": 1, "f": float(np.float32(0.1)), "s": "ä", "l": [1, 2], "t": "2026-01-01T00:00:00+00:00"}
    assert second == dict.fromkeys(first)


def test_files_of_several_formats_are_read_whole(tmp_path: Path) -> None:
    table = pa.table({"t": [3, 1, 2], "user": ["a", "b", "c"]})
    pq.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_text("t,user\n3,a\n1,b\n2,c\n")
    (tmp_path / "c.jsonl").write_text('{"t":3,"user":"a"}\n{"t":1,"user":"b"}\n{"t":2,"user":"c"}\n')
    for name in ("a.parquet", "b.csv", "c.jsonl"):
        rows = open_rows([str(tmp_path / name)])
        assert rows.columns == ["t", "user"] and rows.total == 3
        assert [chunk.table.select(["t", "user"]).to_pylist() for chunk in rows.chunks()] == [table.to_pylist()]


def test_rows_of_several_files_are_counted_on(tmp_path: Path) -> None:
    for name, count in (("a", 2), ("b", 3)):
        pq.write_table(pa.table({"t": list(range(count)), "other": [0] * count}), tmp_path / f"{name}.parquet")
    rows = open_rows([str(tmp_path / "*.parquet")], columns=["t"])
    assert [(chunk.number, chunk.first_row) for chunk in rows.chunks()] == [(0, 0), (2, 0)]
    numbers = [number_of(message_id(file, 1, 1), rows.offsets, rows.total) for file in rows.offsets]
    assert sorted(numbers, key=str) == [6, 8]     # of the second round of 5 rows


@pytest.mark.parametrize(("options", "field"), [
    ({"columns": ["nothing"]}, "columns"), ({"also": ["nothing"]}, "columns"), ({"format": "xml"}, "format"),
])
def test_what_is_not_there_is_named(tmp_path: Path, options: dict[str, str], field: str) -> None:
    pq.write_table(pa.table({"t": [1]}), tmp_path / "a.parquet")
    with pytest.raises(InvalidArgument) as refused:
        open_rows([str(tmp_path / "a.parquet")], **options)
    assert refused.value.violations[0].path == field


def test_rows_are_due_by_their_time_and_none_before_one_ahead_of_it() -> None:
    due = Pace(60.0, first=100.0, began=5.0).due(np.array([100.0, 160.0, 130.0, 220.0]))
    assert due.tolist() == [5.0, 6.0, 6.0, 7.0]
    assert Pace(0.0, first=0.0, began=5.0).due(np.array([9.0])).tolist() == [5.0]


def test_a_round_follows_the_one_before_by_a_step() -> None:
    assert rounds_apart(0.0, 9.0, 10) == 10.0 and rounds_apart(4.0, 4.0, 1) == 1.0


@settings(deadline=None)
@given(st.data())
def test_whatever_was_in_flight_what_is_missing_is_sent_again_and_nothing_twice(data: st.DataObject) -> None:
    """Rows of a partition are stored in order but for those in flight at the end, of which any may be missing."""
    in_flight = data.draw(st.integers(1, 5))
    rows = sorted(data.draw(st.sets(st.integers(0, 40), min_size=1)))
    sent = data.draw(st.integers(0, len(rows)))
    lost = data.draw(st.sets(st.sampled_from(rows[max(0, sent - in_flight) : sent]))) if sent else set()
    stored = [row for row in rows[:sent] if row not in lost]
    tail = stored[-2 * in_flight :]
    found = there(tail, in_flight=in_flight, whole=len(tail) == len(stored)) or there(
        stored, in_flight=in_flight, whole=True
    )
    assert found is not None
    assert [row for row in rows if row not in found] == [row for row in rows if row not in stored]


def test_few_messages_of_one_s_own_at_the_end_are_not_enough() -> None:
    assert there([7, 8], in_flight=2, whole=False) is None
    assert there([6, 7, 8], in_flight=2, whole=False) == There(6, frozenset({6, 7, 8}))


def test_ids_of_others_are_no_rows() -> None:
    assert [number_of(text, {"f": 0}, 10) for text in ("g:0:1", "f:0:x", "", "f")] == [None] * 4


def test_topics_have_names_that_are_subjects() -> None:
    assert (stream_of("ads.clicks", 3), subject_of("ads.clicks", 3)) == ("ads_clicks-3", "ads.clicks.3")
    for name in ("a b", "", "a.", "*", "a..b"):
        with pytest.raises(InvalidArgument):
            topic_name(name, field="to")
