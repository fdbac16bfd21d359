"""Windows of streams: which ones there are, in which order, and where their files lie."""

from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recmesh.data.windows import Turn, active, begins, filled, shown, turns
from recmesh.runtime.errors import InvalidArgument
from recmesh.spec.dataset import DatasetSpec

HOUR, DAY = 3600, 86400
BEGIN = 1_704_067_200                   # 2024-01-01
FEATURES = [{"name": "item"}]


def source(**more: Any) -> dict[str, Any]:
    return {"files": ["{YYYY}{MM}{DD}/{HH}/*.parquet"], "start": "2024-01-01", "end": "2024-01-01T03:00"} | more


def dataset(*streams: list[dict[str, Any]], window: str = "1h", **more: Any) -> DatasetSpec:
    listed = [{"window": window, "sources": sources} for sources in streams]
    return DatasetSpec.parse({"streams": listed, "features": FEATURES} | more)


def hours(found: list[Turn]) -> list[tuple[int, float]]:
    return [(turn.stream, (turn.begin - BEGIN) / HOUR) for turn in found]


def test_a_window_is_there_for_each_step_between_start_and_end() -> None:
    assert hours(list(turns(dataset([source()])))) == [(0, 0), (0, 1), (0, 2)]
    ragged = dataset([source(start="2024-01-01T00:59", end="2024-01-01T02:01")])
    assert hours(list(turns(ragged))) == [(0, 0), (0, 1), (0, 2)]


def test_streams_come_one_after_another_or_together_by_time() -> None:
    two = [source()], [source(start="2024-01-01T01:00", end="2024-01-01T04:00")]
    assert hours(list(turns(dataset(*two)))) == [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (1, 3)]
    assert hours(list(turns(dataset(*two, together=True)))) == [(0, 0), (0, 1), (1, 1), (0, 2), (1, 2), (1, 3)]


def test_a_source_that_is_behind_serves_older_files_in_the_same_window() -> None:
    spec = dataset([source(), source(offset="2h", end="2024-01-01T02:00")])
    stream = spec.streams[0]
    assert [active(stream, BEGIN + hour * HOUR) for hour in range(5)] == [[0], [0], [0, 1], [1], []]
    assert len(list(begins(stream))) == 4


def test_a_stream_without_an_end_goes_on() -> None:
    spec = dataset([source(), source(end=None)])
    assert spec.endless
    assert hours(list(islice(turns(spec), 100)))[-1] == (0, 99)


@given(
    together=st.booleans(), lengths=st.lists(st.integers(1, 5), min_size=1, max_size=3), data=st.data(),
)
def test_whoever_goes_on_after_a_turn_sees_the_ones_that_follow_it(
    together: bool, lengths: list[int], data: st.DataObject
) -> None:
    streams = [
        [source(start=BEGIN + index * HOUR, end=BEGIN + (index + length) * HOUR)]
        for index, length in enumerate(lengths)
    ]
    spec = dataset(*streams, together=together)
    everything = list(turns(spec))
    at = data.draw(st.integers(0, len(everything) - 1))
    assert list(turns(spec, after=everything[at])) == everything[at + 1 :]


def test_paths_have_the_parts_of_a_moment() -> None:
    at = BEGIN + 13 * HOUR + 5 * 60
    assert filled("s3://x/{YYYY}/{MM}-{DD}/{HH}{mm}/*", at) == "s3://x/2024/01-01/1305/*"
    assert shown(at) == "2024-01-01T13:05Z"


@pytest.mark.parametrize(
    ("changes", "path", "reason"),
    [
        ({"end": "2023-01-01"}, "streams.0.sources.0.end", "must be after start"),
        ({"files": ["all.parquet"]}, "streams.0.sources.0.files.0", "need {YYYY}, {MM}, {DD}, {HH} here"),
        ({"files": ["{YYYY}{MM}{DD}/{HH}/a", "{YYYY}{MM}{DD}/b"]}, "streams.0.sources.0.files.1", "need {HH} here"),
        ({"files": ["{HH}/*.parquet"]}, "streams.0.sources.0.files.0", "need {YYYY}, {MM}, {DD} here"),
        ({"done": "_DONE"}, "streams.0.sources.0.done", "need {YYYY}"),
        ({"offset": "90m"}, "streams.0.sources.0.offset", "whole windows"),
        ({"start": "soon"}, "streams.0.sources.0.start", "no moment"),
        ({"rows": [0, 0.5]}, "streams.0.sources.0.rows", "start and end say which part"),
    ],
)
def test_what_is_wrong_with_a_source_is_told_by_its_place(changes: dict[str, Any], path: str, reason: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        dataset([source(**changes)])
    assert {item.path: item.reason for item in caught.value.violations}[path].find(reason) >= 0


def test_streams_are_told_apart_from_a_source_and_from_each_other() -> None:
    with pytest.raises(InvalidArgument, match="wrong field") as caught:
        dataset([source()], source={"files": ["a.parquet"]})
    assert caught.value.violations[0].path == "streams"
    with pytest.raises(InvalidArgument, match="wrong field") as caught:
        dataset([source(end=None)], [source()])
    assert caught.value.violations[0].reason.startswith("never ends")
    with pytest.raises(InvalidArgument, match="wrong field") as caught:
        dataset([source(weight=1), source()])
    assert "either all of them" in caught.value.violations[0].reason
    with pytest.raises(InvalidArgument, match="wrong field") as caught:
        DatasetSpec.parse({"features": FEATURES})
    assert caught.value.violations[0].path == "source"


def test_a_specification_survives_json_and_shows_each_source_its_own() -> None:
    spec = dataset([source(), source(types={"item": "int"}, format="csv")], [source()])
    assert DatasetSpec.parse(spec.model_dump(mode="json")) == spec
    assert [view.source.format for view in spec.views()] == ["parquet", "csv", "parquet"]
    single = DatasetSpec.parse({"source": {"files": ["a.parquet"]}, "features": FEATURES})
    assert single.views()[0].source == single.source and DatasetSpec.parse(single.model_dump()) == single
