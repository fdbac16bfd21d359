"""The task graph: windows in order, listings shared, sources merged by their weights."""

from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from recmesh.data import index_dataset, preview
from recmesh.data.filecolumns import Files
from recmesh.data.listing import Lister, matching
from recmesh.data.taskgraph import GROUP_BYTES, Group, NotYet, TaskGraph, Window, grouped, joined
from recmesh.data.windows import turns
from recmesh.datasets import Dataset, DataStream, Source
from recmesh.runtime.errors import InvalidArgument
from recmesh.spec.dataset import DatasetSpec
from tests.unit.data.test_windows import BEGIN, HOUR, dataset, source

ROWS = 20


@pytest.fixture
def hourly(tmp_path: Path) -> str:
    """Two tables of three hours, of two files each; an item says table, hour and row."""
    for table in range(2):
        for hour in range(3):
            folder = tmp_path / f"t{table}" / "20240101" / f"{hour:02}"
            folder.mkdir(parents=True)
            for part in range(2):
                items = [table * 10_000 + hour * 1_000 + part * 100 + row for row in range(ROWS)]
                pq.write_table(pa.table({"item": items, "label": [0.0] * ROWS}), folder / f"{part}.parquet")
    return str(tmp_path)


def table(root: str, number: int, **more: Any) -> dict[str, Any]:
    return source(files=[f"{root}/t{number}/{{YYYY}}{{MM}}{{DD}}/{{HH}}/*.parquet"], **more)


def items(spec: DatasetSpec, *, seed: int = 1) -> list[int]:
    return [int(item) for batch in Dataset(spec).batches(7, seed=seed) for item in batch.ids["item"].values]


def test_rows_come_hour_by_hour_and_those_of_an_hour_shuffled_by_the_seed(hourly: str) -> None:
    spec = dataset([table(hourly, 0), table(hourly, 1)])
    found = items(spec)
    assert sorted(found) == sorted(t * 10_000 + h * 1_000 + p * 100 + r for t in range(2) for h in range(3)
                                   for p in range(2) for r in range(ROWS))
    assert [item // 1_000 % 10 for item in found] == [hour for hour in range(3) for _ in range(4 * ROWS)]
    assert items(spec) == found and items(spec, seed=2) != found
    plain = items(dataset([table(hourly, 0)], shuffle=False))
    assert plain == sorted(plain)


def test_streams_one_after_another_or_hour_by_hour(hourly: str) -> None:
    streams = [table(hourly, 0)], [table(hourly, 1)]
    assert [item // 10_000 for item in items(dataset(*streams))] == [0] * 6 * ROWS + [1] * 6 * ROWS
    together = items(dataset(*streams, together=True))
    assert [item // 1_000 for item in together[:: 2 * ROWS]] == [0, 10, 1, 11, 2, 12]


def test_a_loader_of_streams_goes_on_from_its_state(hourly: str) -> None:
    spec = dataset([table(hourly, 0), table(hourly, 1, offset="1h")])
    everything = items(spec)
    loader = Dataset(spec).batches(7, seed=1)
    for _ in range(9):
        next(loader)
    later = Dataset(spec).batches(7, seed=1)
    later.load_state_dict(loader.state_dict())
    assert [int(item) for batch in later for item in batch.ids["item"].values] == everything[63:]


def test_streams_without_an_end_need_a_mesh_and_a_preview_is_of_the_first_windows(hourly: str) -> None:
    spec = dataset([table(hourly, 0, end=None)])
    with pytest.raises(InvalidArgument, match="only a job of a mesh"):
        index_dataset(spec)
    index = preview(spec, now=BEGIN + HOUR)
    assert (index.rows, len(index.files)) == (2 * ROWS, 2)
    assert set(index.columns) == {"item", "label"}


def test_streams_that_have_not_begun_are_fine_and_those_that_lead_nowhere_are_not(hourly: str) -> None:
    later = dataset([table(hourly, 0, start="2024-01-02", end=None)])
    assert preview(later, now=BEGIN + 24 * HOUR).rows == 0
    with pytest.raises(InvalidArgument, match="no file of 2024-01-02T00:00Z"):
        preview(later, now=BEGIN + 25 * HOUR)


def test_a_window_without_files_is_told_by_source_and_hour(hourly: str) -> None:
    spec = dataset([table(hourly, 0), table(hourly, 1, end="2024-01-01T05:00")])
    with pytest.raises(InvalidArgument) as caught:
        index_dataset(spec)
    [violation] = caught.value.violations
    assert violation.path == "data.streams.0.sources.1.files"
    assert violation.reason.startswith("no file of 2024-01-01T03:00Z matches") and "/20240101/03/*" in violation.reason
    empty = dataset([table(hourly, 0), table(hourly, 1, end="2024-01-01T05:00", may_be_empty=True)])
    assert index_dataset(empty).rows == 12 * ROWS


def test_a_window_is_there_with_its_marker_or_once_its_time_is_over(hourly: str) -> None:
    marked = dataset([table(hourly, 0, done=f"{hourly}/t0/{{YYYY}}{{MM}}{{DD}}/{{HH}}/_DONE")])
    graph, turn = TaskGraph(marked, seed=0, patience_s=5.0), next(turns(marked))
    waiting = graph.window(turn, now=BEGIN + 10 * HOUR)
    assert isinstance(waiting, NotYet) and waiting.look_at == BEGIN + 10 * HOUR + 5.0
    assert waiting.why == f"source 0 waits for {hourly}/t0/20240101/00/_DONE"
    with pytest.raises(InvalidArgument, match="waits for"):
        index_dataset(marked)
    (Path(hourly) / "t0" / "20240101" / "00" / "_DONE").touch()
    window = graph.window(turn, now=BEGIN + 10 * HOUR)
    assert isinstance(window, Window) and sum(len(group.infos) for group in window.groups) == 2
    graph.close()

    late = dataset([table(hourly, 0, end=None, lateness="10m")])
    graph, turn = TaskGraph(late, seed=0), next(turns(late))
    early = graph.window(turn, now=BEGIN + HOUR)
    assert isinstance(early, NotYet) and early.look_at == BEGIN + HOUR + 600
    assert isinstance(graph.window(turn, now=BEGIN + HOUR + 600), Window)
    graph.close()


class Counting:
    """Opens local files; counts what is asked of the file system."""

    def __init__(self) -> None:
        self.listed = Counter[str]()

    def __call__(self, url: str) -> tuple[Any, str]:
        real, path = fsspec.core.url_to_fs(url)
        counting = self

        class Wrapped(type(real)):  # type: ignore[misc]  # the file system of the URL, whichever it is
            def ls(self, path: str, detail: bool = False, **more: Any) -> Any:
                counting.listed[path] += 1
                return super().ls(path, detail=detail, **more)

        return Wrapped(skip_instance_cache=True), path


def test_a_folder_that_several_sources_and_streams_need_is_listed_once(hourly: str) -> None:
    one = source(files=[f"{hourly}/t0/{{YYYY}}{{MM}}{{DD}}/{{HH}}/0.parquet"])
    rest = source(files=[f"{hourly}/t0/{{YYYY}}{{MM}}{{DD}}/{{HH}}/1*"])
    spec = dataset([one, rest], [table(hourly, 0)], together=True)
    opened = Counting()
    lister = Lister(open=opened)
    graph = TaskGraph(spec, seed=0, lister=lister)
    windows = list(graph.windows())
    graph.close()
    assert sum(len(group.infos) for window in windows for group in window.groups) == 12
    assert set(opened.listed.values()) == {1} and lister.calls == 3


def test_listings_on_another_file_system_give_files_that_can_be_opened() -> None:
    memory = fsspec.filesystem("memory")
    for hour in range(2):
        with memory.open(f"/streams/20240101/{hour:02}/a.parquet", "wb") as file:
            pq.write_table(pa.table({"item": [hour], "label": [0.0]}), file)
    files = ["memory://streams/{YYYY}{MM}{DD}/{HH}/*.parquet"]
    spec = dataset([source(files=files, end="2024-01-01T02:00")], shuffle=False)
    assert items(spec) == [0, 1]
    memory.rm("/streams", recursive=True)


# ---- groups, joined


@given(sizes=st.lists(st.integers(0, 3 * GROUP_BYTES // 2), max_size=40))
def test_groups_are_runs_of_bounded_size_that_hold_every_file_once(sizes: list[int]) -> None:
    files = Files.of([str(index) for index in range(len(sizes))], sizes, [""] * len(sizes))
    groups = grouped(3, files)
    assert [info.uri for group in groups for info in group.infos] == files.uris.to_pylist()
    for group in groups:
        assert group.view == 3 and group.lo < group.hi
        assert sum(sizes[group.lo : group.hi]) <= GROUP_BYTES or group.hi == group.lo + 1


def of_size(view: int, sizes: list[int]) -> list[Group]:
    files = Files.of([f"{view}-{index}" for index in range(len(sizes))], sizes, [""] * len(sizes))
    return [Group(view, files, index, index + 1, sizes[index]) for index in range(len(sizes))]


def test_sources_end_together_or_are_served_by_their_weights() -> None:
    sources = of_size(0, [10] * 8), of_size(1, [10] * 2)
    assert [group.view for group in joined(sources, [None, None])] == [0, 0, 0, 0, 1, 0, 0, 0, 0, 1]
    assert [group.view for group in joined(sources, [1.0, 1.0])] == [0, 1, 0, 1, 0, 0, 0, 0, 0, 0]
    assert [group.view for group in joined(sources, [3.0, 1.0])] == [0, 0, 0, 1, 0, 0, 0, 1, 0, 0]
    assert joined([[], []], [None, None]) == ()


@given(st.lists(st.lists(st.integers(0, 100), max_size=12), min_size=1, max_size=4), st.booleans())
def test_joining_loses_nothing_and_keeps_each_sources_order(sizes: list[list[int]], is_weighted: bool) -> None:
    sources = [of_size(view, each) for view, each in enumerate(sizes)]
    found = joined(sources, [float(view + 1) if is_weighted else None for view in range(len(sizes))])
    for view, groups in enumerate(sources):
        assert [group for group in found if group.view == view] == groups
    assert len(found) == sum(map(len, sources))


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("*", ["x/.b", "x/a", "x/a.b"]), ("*.b", ["x/.b", "x/a.b"]), ("a*", ["x/a", "x/a.b"]), ("a*b", ["x/a.b"]),
        ("a.b", ["x/a.b"]), ("?.b", ["x/a.b"]), ("[a]*", ["x/a", "x/a.b"]), ("ab*b", []), ("x*", []), ("b", []),
        ("a", ["x/a"]), ("a.*b", ["x/a.b"]), ("*a*", ["x/a", "x/a.b"]), ("a.b*b", []),
    ],
)
def test_names_match_as_patterns_of_shells_do(name: str, fits: list[str]) -> None:
    files = Files.of(["x/.b", "x/a", "x/a.b"], [1, 1, 1], ["", "", ""])
    assert matching(files, name).uris.to_pylist() == fits


def test_a_listing_that_fails_is_not_remembered(tmp_path: Path) -> None:
    lister = Lister()
    assert len(lister.files(f"{tmp_path}/later/*.parquet")) == 0
    lister.forget([f"{tmp_path}/later/*.parquet"])
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "a.parquet").touch()
    assert len(lister.files(f"{tmp_path}/later/*.parquet")) == 1


def test_streams_in_python_are_those_of_yaml(hourly: str) -> None:
    tables = [
        Source.files(
            f"{hourly}/t{number}/{{YYYY}}{{MM}}{{DD}}/{{HH}}/*.parquet", start=date(2024, 1, 1), end=BEGIN + 3 * HOUR
        )
        for number in range(2)
    ]
    made = Dataset(DataStream(tables, window="1h", offsets=["0h", "1h"], weights=[2, 1]), features=[{"name": "item"}])
    assert made.spec == dataset([table(hourly, 0, weight=2), table(hourly, 1, offset="1h", weight=1)])
    assert Dataset(made.spec.model_dump()).spec == made.spec
    with pytest.raises(ValueError, match="weights: 1 for 2 sources"):
        DataStream(tables, weights=[1])
    with pytest.raises(TypeError, match="given alone"):
        Dataset(made.spec, label="click")


def test_paths_of_streams_in_a_file_count_from_the_file(hourly: str, tmp_path: Path) -> None:
    source = {"files": ["t0/{YYYY}{MM}{DD}/{HH}/*.parquet"], "start": "2024-01-01", "end": "2024-01-01T01:00"}
    path = tmp_path / "dataset.yaml"
    path.write_text(yaml.safe_dump({"streams": [{"sources": [source]}], "features": [{"name": "item"}]}))
    path.write_text(path.read_text().replace("'2024-01-01'", "2024-01-01"))         # which YAML takes for a date
    assert len(items(Dataset(path).spec)) == 2 * ROWS


def test_a_folder_of_several_windows_is_listed_anew_for_each_in_a_mesh(tmp_path: Path) -> None:
    """Files of the second hour come after the folder was listed for the first."""
    folder = tmp_path / "20240101"
    folder.mkdir()
    for name in ("00-a", "01-a"):
        (folder / f"{name}.parquet").touch()
    daily = source(files=[f"{tmp_path}/{{YYYY}}{{MM}}{{DD}}/{{HH}}-*.parquet"], end="2024-01-01T02:00")
    spec = dataset([daily])
    graph, (first, second) = TaskGraph(spec, seed=0), list(turns(spec))
    found = graph.window(first, now=BEGIN + HOUR)
    assert isinstance(found, Window) and sum(len(group.infos) for group in found.groups) == 1
    (folder / "01-b.parquet").touch()
    found = graph.window(second, now=BEGIN + 2 * HOUR)
    assert isinstance(found, Window) and sum(len(group.infos) for group in found.groups) == 2
    graph.close()


def test_windows_ahead_are_listed_only_once_they_are_complete(hourly: str) -> None:
    spec = dataset([table(hourly, 0, done=f"{hourly}/t0/{{YYYY}}{{MM}}{{DD}}/{{HH}}/_DONE")])
    for hour in range(3):
        (Path(hourly) / "t0" / "20240101" / f"{hour:02}" / "_DONE").touch()
    marker = Path(hourly) / "t0" / "20240101" / "01" / "_DONE"
    marker.unlink()
    graph = TaskGraph(spec, seed=0)
    windows = graph.windows()
    next(windows)
    pq.write_table(pa.table({"item": [7], "label": [0.0]}), marker.parent / "2.parquet")
    marker.touch()
    assert sum(len(group.infos) for group in next(windows).groups) == 3
    graph.close()


def test_a_file_of_two_patterns_and_wrong_columns_are_told_by_their_source(hourly: str) -> None:
    paths = [f"{hourly}/t1/{{YYYY}}{{MM}}{{DD}}/{{HH}}/{name}" for name in ("*.parquet", "0*")]
    with pytest.raises(InvalidArgument, match="matches two patterns") as caught:
        index_dataset(dataset([table(hourly, 0), source(files=paths)]))
    assert caught.value.violations[0].path == "data.streams.0.sources.1.files"
    spec = dataset([table(hourly, 0), source(files=paths[:1], format="arrow")])
    with pytest.raises(InvalidArgument) as caught:
        index_dataset(spec)
    assert caught.value.violations[0].path.startswith("data.streams.0.sources.1.")
