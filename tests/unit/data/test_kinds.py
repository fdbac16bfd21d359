"""Minibatches of batch and of stream samples: each has one kind, whoever cuts it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recmesh
from recmesh.data import TaskReader, whole_dataset
from recmesh.data.index import index_tasks
from recmesh.data.loading import Loader, Share
from recmesh.data.order import Plan, generate
from recmesh.data.records import kind_borders
from recmesh.runtime.errors import InvalidArgument
from recmesh.spec.dataset import DatasetSpec
from tests.support.hours import FEATURES, modes, write_hours

HOURS, ROWS = 4, 70
KINDS = {
    "batch": ["batch"], "stream": ["stream"], "batch_then_stream": ["batch", "stream"],
    "mixed": ["stream", *["batch", "stream"] * (HOURS - 1)],
}
"""In which order the kinds come."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DatasetSpec]:
    root = tmp_path_factory.mktemp("hours")
    write_hours(root, hours=HOURS, rows=ROWS)
    return {name: DatasetSpec.parse(mode) for name, mode in modes(root, hours=HOURS).items()}


def kinds_and_rows(batches: Any) -> tuple[list[str], list[int]]:
    kinds: list[str] = []
    rows: list[int] = []
    for batch in batches:
        numbers = batch.dense[:, 0]
        assert set(numbers >= 100_000) == {batch.kind == "stream"}
        kinds += [batch.kind] if kinds[-1:] != [batch.kind] else []
        rows += [int(number) for number in numbers]
    return kinds, rows


def numbers_of(mode: str) -> list[int]:
    batches = [] if mode == "stream" else list(range(ROWS * (HOURS - (mode == "mixed"))))
    return batches + ([] if mode == "batch" else [100_000 + number for number in range(ROWS * HOURS)])


@pytest.mark.parametrize("size", [16, 1000])
@pytest.mark.parametrize("mode", KINDS)
def test_a_loaders_batches_have_one_kind_and_every_row_comes_once(
    data: dict[str, DatasetSpec], mode: str, size: int
) -> None:
    loader = Loader(data[mode], batch_size=size, epochs=1)
    expected = len(loader)
    batches = list(loader)
    kinds, rows = kinds_and_rows(batches)
    assert sorted(rows) == numbers_of(mode) and len(batches) == expected
    order = KINDS[mode]
    assert kinds == order or (mode == "mixed" and sorted(set(kinds)) == ["batch", "stream"] and kinds[0] == "stream")


def test_a_loader_that_goes_on_elsewhere_still_never_mixes_kinds(data: dict[str, DatasetSpec]) -> None:
    spec = data["mixed"]
    first = Loader(spec, batch_size=50, seed=3)
    seen = [batch for _, batch in zip(range(4), first, strict=False)]
    states = [first.state_dict()]
    for rank in range(3):
        loader = Loader(spec, batch_size=33, seed=3, share=Share(rank, 3))
        loader.load_state_dict(Loader.merge(states))
        seen += list(loader)
    assert sorted(kinds_and_rows(seen)[1]) == numbers_of("mixed")


def test_evaluation_never_mixes_kinds(data: dict[str, DatasetSpec]) -> None:
    batches = list(whole_dataset(data["mixed"], batch_size=1000))
    assert sorted(kinds_and_rows(batches)[1]) == numbers_of("mixed")
    assert sum(batch.size for batch in whole_dataset(data["mixed"], batch_size=64, max_rows=200)) == 200


def test_a_reader_refuses_positions_of_several_kinds(data: dict[str, DatasetSpec]) -> None:
    spec = data["batch_then_stream"]
    tasks = list(generate(Plan(tuple(index_tasks(spec)), 1, 0, True, in_time=True)))
    border, = kind_borders(tasks, spec.kinds)
    assert border == ROWS * HOURS
    reader = TaskReader(spec)
    with pytest.raises(InvalidArgument, match="several kinds"):
        reader.batch(tasks, border - 1, border + 1)
    assert reader.batch(tasks, border - 1, border).kind == "batch"
    assert reader.batch(tasks, border, border + 1).kind == "stream"


def test_rows_that_are_all_left_out_are_of_their_kind_too(data: dict[str, DatasetSpec]) -> None:
    spec = DatasetSpec.parse(data["stream"].model_dump() | {"where": [{"column": "user", "op": ">", "value": 99}]})
    tasks = [task for task in generate(Plan(tuple(index_tasks(data["stream"])), 1, 0, True)) if not task.close]
    empty = TaskReader(spec).batch(tasks[:1], tasks[0].base, tasks[0].base + 5)
    assert empty.size == 0 and empty.kind == "stream"


def test_files_are_batches_unless_their_source_says_otherwise(tmp_path: Path) -> None:
    write_hours(tmp_path, hours=1)
    path = str(tmp_path / "stream" / "20240101" / "00.parquet")
    assert DatasetSpec.parse({"source": {"files": [path]}, "features": FEATURES}).kinds == ("batch",)
    loader = recmesh.Dataset({"source": {"files": [path]}, "features": FEATURES}).torch(batch_size=10)
    next(loader)
    assert loader.kind == "batch"
    hourly = [{"files": ["{YYYY}{MM}{DD}{HH}"], "start": 0, "end": 3600, **kind} for kind in ({}, {"kind": "stream"})]
    streams = [{"window": "1h", "sources": hourly}]
    assert DatasetSpec.parse({"streams": streams, "features": FEATURES}).kinds == ("batch", "stream")
    with pytest.raises(InvalidArgument):
        DatasetSpec.parse({"streams": [{"sources": [hourly[0] | {"kind": "both"}]}], "features": FEATURES})


def test_a_tensor_loader_tells_the_kind_of_its_last_item(data: dict[str, DatasetSpec]) -> None:
    loader = recmesh.Dataset(data["mixed"]).torch(batch_size=64)
    for inputs, _, _ in loader:
        assert bool(np.all(inputs["x"].numpy() >= 100_000)) == (loader.kind == "stream")
