"""The materialised cache: decoded tasks as files."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recmesh.data import Batch, TaskReader
from recmesh.data.stored import read_decoded, sweep
from recmesh.spec.fingerprint import reading_fingerprint
from tests.support.datasets import clicks, spec, tasks_of, write
from tests.unit.trainer.test_rows_wire import same

ROWS = 600


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return write(clicks(ROWS), tmp_path / "a.parquet")


def cached(file: Path, **more: Any) -> Any:
    return spec(file, task_rows=200, cache={"folder": str(file.parent / "cache")} | more.pop("cache", {}), **more)


def everything(dataset: Any, *, seed: int = 5) -> list[Batch]:
    reader = TaskReader(dataset)
    return [reader.task(task) for task in tasks_of(dataset, order_seed=seed)]


def stored(file: Path) -> list[Path]:
    return sorted((file.parent / "cache").glob("*/*.arrow"))


def test_rows_from_the_cache_are_those_of_the_file_bit_for_bit(files: Path) -> None:
    plain = everything(spec(files, task_rows=200))
    for found in (everything(cached(files)), everything(cached(files))):
        for left, right in zip(found, plain, strict=True):
            same(left, right)
    assert len(stored(files)) == 3


def test_the_second_time_no_file_is_read(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = everything(cached(files))
    tasks = tasks_of(cached(files), order_seed=5)
    reader = TaskReader(cached(files))
    monkeypatch.setattr(reader, "_ordered", lambda *_: pytest.fail("read again"))
    for task, want in zip(tasks, first, strict=True):
        same(reader.decode(task).batch, want)


def test_bad_and_filtered_rows_are_stored_with_their_places(tmp_path: Path) -> None:
    text = "".join(f'{{"row": {i}, "label": {i % 2}, "user": {i}, "city": "x", "price": 1}}\n' for i in range(50))
    lines = text.splitlines(keepends=True)
    lines[7] = "broken\n"
    file = tmp_path / "a.jsonl"
    file.write_text("".join(lines))
    types = {"row": "int", "label": "int", "user": "int", "city": "string", "price": "float"}
    dataset = cached(
        file, format="jsonl", types=types, bad_records={"limit": 5}, where=[{"column": "row", "op": ">=", "value": 3}]
    )
    (task,) = tasks_of(dataset, order_seed=3)
    made, kept = TaskReader(dataset).decode(task), TaskReader(dataset).decode(task)
    assert len(stored(file)) == 1
    same(kept.batch, made.batch)
    assert kept.places is not None and made.places is not None
    assert (kept.places.tolist(), kept.bad.tolist()) == (made.places.tolist(), made.bad.tolist())
    assert len(kept.bad) == 1


def test_another_order_another_transform_and_a_changed_file_are_stored_apart(files: Path) -> None:
    everything(cached(files), seed=5)
    everything(cached(files), seed=6)
    assert len(stored(files)) == 6
    everything(cached(files, features=[{"name": "user", "buckets": 7}]))
    assert len(stored(files)) == 9
    write(clicks(ROWS, seed=2), files)
    same(everything(cached(files))[0], everything(spec(files, task_rows=200))[0])
    assert len(stored(files)) == 12


def test_a_damaged_file_is_thrown_away_and_made_again(files: Path) -> None:
    want = everything(cached(files))
    damaged = stored(files)[0]
    damaged.write_bytes(damaged.read_bytes()[:100])
    for left, right in zip(everything(cached(files)), want, strict=True):
        same(left, right)
    assert read_decoded(damaged).batch.size == 200


def test_a_folder_that_cannot_be_written_costs_nothing_but_speed(files: Path) -> None:
    (files.parent / "cache").write_text("no folder")
    for left, right in zip(everything(cached(files)), everything(spec(files, task_rows=200)), strict=True):
        same(left, right)


def test_files_beyond_the_limit_go_those_that_were_not_used_for_longest_first(tmp_path: Path) -> None:
    folder, beside = tmp_path / ("0f" * 16), tmp_path / "criteo" / "day0.arrow"
    for parent in (folder, beside.parent):
        parent.mkdir()
    beside.write_bytes(bytes(1000))             # a user's own, older than all
    os.utime(beside, (0, 0))
    for number in range(4):
        path = folder / f"{number:040x}.arrow"
        path.write_bytes(bytes(100))
        os.utime(path, (number, number))
    assert sweep(tmp_path, limit_bytes=250) == 2
    assert sorted(int(path.stem) for path in folder.iterdir()) == [2, 3]
    assert beside.exists()


def test_the_fingerprint_is_of_what_rows_are_and_not_of_which(files: Path) -> None:
    base = spec(files)
    assert reading_fingerprint(base) == reading_fingerprint(spec(files, rows=[0, 0.5]))
    assert reading_fingerprint(base) == reading_fingerprint(cached(files, name="other", shuffle=False))
    assert reading_fingerprint(base) != reading_fingerprint(spec(files, label="user"))
    assert reading_fingerprint(base) != reading_fingerprint(spec(files, where=[{"column": "row", "value": 1}]))
    function = spec(files, features=[{"name": "user", "columns": ["user"], "function": "mine:twice"}])
    assert reading_fingerprint(function) is None
    prints = {reading_fingerprint(function, code=f"sha256:{i}") for i in range(2)}
    assert len(prints) == 2 and None not in prints


def test_arrays_of_the_cache_are_not_to_be_written_to(files: Path) -> None:
    everything(cached(files))
    batch = read_decoded(stored(files)[0]).batch
    with pytest.raises(ValueError, match="read-only"):
        batch.dense[0, 0] = 1.0
    assert isinstance(batch.ids["user"].values, np.ndarray)
