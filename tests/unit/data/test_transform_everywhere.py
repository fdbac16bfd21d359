"""Wherever rows become inputs they come to the same values, bit for bit: training in-process and from data executors,
evaluation, an exported model's `model.json`, and requests for predictions."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recmesh.client.rows import request_for
from recmesh.data import Batch, TaskReader, TaskRecord
from recmesh.data.records import concat
from recmesh.data.transform import Transform
from recmesh.formats import permutation
from recmesh.serving.raw.model import RawModel
from recmesh.serving.tensors import Tensor
from recmesh.spec.job import TrainingJob
from recmesh.trainer.card import CARD, inputs_of, model_card, write_card
from recmesh.trainer.evaluation import evaluation_batches
from recmesh.trainer.executor.role import executor_of
from recmesh.trainer.executor.serving import Rows
from recmesh.trainer.wire.rows import read_reply, read_rows
from tests.support.datasets import tasks_of
from tests.unit.trainer.test_rows_wire import same

MODULE = "everywhere_features"
FUNCTIONS = """
import pyarrow as pa
import pyarrow.compute as pc

def ratio(part, whole):
    return pc.divide(pc.cast(part, "float64"), pc.cast(whole, "float64"))

def words(title):
    return pc.split_pattern(pc.cast(title, "string"), " ")

def later(seen):
    seen = seen.cast(pa.list_(pa.int64()))
    return pa.ListArray.from_arrays(seen.offsets, pc.add(seen.values, 1), mask=seen.is_null())

def parity(user):
    return pc.bit_wise_and(pc.cast(user, "int64"), 1)
"""
FEATURES: list[dict[str, Any]] = [
    {"name": "user"}, {"name": "city", "vocabulary": ["Rome", "Oslo"]}, {"name": "age", "boundaries": [18, 30, 65]},
    {"name": "where", "columns": ["user", "city"], "buckets": 97},
    {"name": "parity", "column": "user", "function": f"{MODULE}:parity", "vocabulary": [0, 1]},
    {"name": "tags", "kind": "bag", "separator": "|"},
    {"name": "liked", "kind": "bag", "weights": "how_much", "buckets": 11},
    {"name": "words", "kind": "bag", "column": "title", "function": f"{MODULE}:words"},
    {"name": "seen", "kind": "sequence", "max_length": 3},
    {"name": "later", "kind": "sequence", "column": "seen", "function": f"{MODULE}:later", "max_length": 2,
     "boundaries": [10, 20]},
    {"name": "price", "kind": "dense", "clip": [0, 1000], "transform": "log1p", "fill": 3.5},
    {"name": "ratio", "kind": "dense", "columns": ["part", "whole"], "function": f"{MODULE}:ratio", "fill": -1.0,
     "transform": "criteo_log"},
]
TYPES = {
    "user": pa.int64(), "city": pa.string(), "age": pa.int64(), "tags": pa.string(), "liked": pa.list_(pa.int64()),
    "how_much": pa.list_(pa.float32()), "title": pa.string(), "seen": pa.list_(pa.int64()), "price": pa.float64(),
    "part": pa.float64(), "whole": pa.float32(),
}
LIKED = st.lists(st.tuples(st.integers(-9, 9), st.none() | st.floats(0, 8, width=16)), max_size=4)
ROW = st.fixed_dictionaries({
    "user": st.none() | st.integers(-(2**62), 2**62), "city": st.none() | st.sampled_from(["Rome", "Oslo", "Lima", ""]),
    "age": st.none() | st.integers(0, 120), "tags": st.none() | st.sampled_from(["", "a", "a|b", "b|b|c"]),
    "title": st.none() | st.sampled_from(["", "one", "one two", "two  three"]),
    "seen": st.none() | st.lists(st.integers(0, 50), max_size=5), "price": st.none() | st.floats(-1e6, 1e6),
    "part": st.none() | st.integers(-5, 5), "whole": st.none() | st.floats(0.25, 64, width=16),
    "both": st.none() | LIKED,
}).map(lambda row: _apart(row))
TASK_ROWS, SEED = 3, 9


def _apart(row: dict[str, Any]) -> dict[str, Any]:
    """A bag and its weights, which must be of one length."""
    both = row["both"]
    liked, how_much = (None if both is None else [pair[index] for pair in both] for index in range(2))
    return row | {"liked": liked, "how_much": how_much}


@pytest.fixture(scope="module", autouse=True)
def functions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The job's own code, where Python looks."""
    folder = tmp_path_factory.mktemp("code")
    (folder / f"{MODULE}.py").write_text(FUNCTIONS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield
    sys.modules.pop(MODULE, None)


def job_of(table: pa.Table, folder: Path) -> TrainingJob:
    """A job that trains on these rows, in row groups of their own, and is judged on them."""
    pq.write_table(table, folder / "rows.parquet", row_group_size=TASK_ROWS)
    data = {"source": {"files": [str(folder / "rows.parquet")]}, "features": FEATURES, "task_rows": TASK_ROWS}
    return TrainingJob.parse({
        "name": "job", "model": {"entrypoint": "m:main"}, "data": data, "evaluation": {"rows": [0, 1]},
    })


def from_executor(job: TrainingJob, tasks: list[TaskRecord], total: int) -> Batch:
    """As a worker gets them: decoded by an executor's thread, over the wire."""
    executor, parts = executor_of(job, reach=lambda address: pytest.fail(address)), []
    executor.start("here")
    try:
        executor.announce(tasks)
        for task in tasks:
            found = executor.read(task, task.base, min(task.base + task.rows, total), wait_s=30, here=False)
            assert isinstance(found, Rows)
            _, batch = read_rows(read_reply(found.batch, bad=found.bad))
            assert batch is not None
            parts.append(batch)
    finally:
        executor.stop()
    return concat(parts)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rows=st.lists(ROW, min_size=1, max_size=8))
def test_rows_have_the_same_values_in_training_evaluation_an_exported_model_and_a_request(
    rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    table = pa.table({name: pa.array([row[name] for row in rows], type_) for name, type_ in TYPES.items()})
    job = job_of(table.append_column("label", pa.array(np.arange(len(rows)) % 2.0)), folder)
    assert job.data is not None
    tasks, reader = tasks_of(job.data), TaskReader(job.data)
    trained = reader.batch(tasks, 0, len(rows))

    # Training: rows in an order of their own, and from executors.
    shuffled = tasks_of(job.data, order_seed=SEED)
    for plain, other in zip(tasks, shuffled, strict=True):
        same(reader.task(other), reader.task(plain).take(np.asarray(permutation(SEED, plain.rows), np.int64)))
    same(from_executor(job, tasks, len(rows)), trained)
    same(from_executor(job, shuffled, len(rows)), reader.batch(shuffled, 0, len(rows)))

    # Evaluation, whatever the size of its batches.
    for size in (2, 8192):
        same(concat(list(evaluation_batches(job, batch_size=size))), trained)

    # An exported model: what its folder says is enough.
    write_card(folder, model_card(
        framework="torch", data=job.data, labels=["label"], tables=[], rows={}, metrics={}, versions={}))
    card = orjson.loads((folder / CARD).read_bytes())
    ids, dense = Transform.parse(card["transform"]).inputs(table, where="an application")
    same(Batch(len(rows), ids, dense, trained.labels), trained)

    # A request, whose rows are JSON.
    examples = [{name: row[name] for name in TYPES} for row in orjson.loads(orjson.dumps(rows))]
    metadata = {"inputs": [
        {"name": each["name"], "datatype": "FP32" if each["dtype"] == "float32" else "INT64", "shape": each["shape"]}
        for feature in job.data.features for each in inputs_of(feature)
    ]}
    sent = {each["name"]: each for each in request_for(metadata, examples, data=job.data)["inputs"]}
    assert sorted(sent) == sorted(each["name"] for each in card["inputs"])
    for name, wanted in tensors_of(trained).items():
        found = np.array(sent[name]["data"], wanted.dtype).reshape(sent[name]["shape"])
        assert (found.shape, found.tobytes()) == (wanted.shape, wanted.tobytes()), name

    # Raw columns that the gateway is sent, as tensors and as rows of JSON.
    raw = RawModel(folder, functions=Path(str(sys.modules[MODULE].__file__)).parent)
    document = Tensor.of("rows", np.array([orjson.dumps(examples)], object))
    for made in (raw.run("columns", raw_tensors(rows)), raw.run("rows", [document])):
        for name, wanted in tensors_of(trained).items():
            array = next(each.array for each in made if each.name == name)
            assert (array.shape, array.tobytes()) == (wanted.shape, wanted.tobytes()), name


def raw_tensors(rows: list[dict[str, Any]]) -> list[Tensor]:
    """As the inference protocol carries columns: rectangles, with lengths, and where there is no value."""
    tensors: list[Tensor] = []
    for name, type_ in TYPES.items():
        values = [row[name] for row in rows]
        tensors.append(Tensor.of(f"{name}.null", np.array([value is None for value in values])))
        if not pa.types.is_list(type_):
            empty = "" if pa.types.is_string(type_) else 0
            array = np.array([empty if value is None else value for value in values],
                             object if empty == "" else type_.to_pandas_dtype())
            tensors.append(Tensor.of(name, array))
            continue
        lists = [value or [] for value in values]
        lengths = np.array([len(each) for each in lists], np.int64)
        array = np.zeros((len(rows), max(lengths.max(), 1)), type_.value_type.to_pandas_dtype())
        for row, each in zip(array, lists, strict=True):
            row[:len(each)] = [np.nan if item is None else item for item in each]
        tensors += [Tensor.of(name, array), Tensor.of(f"{name}.lengths", lengths)]
    return tensors


def tensors_of(batch: Batch) -> dict[str, Any]:
    """As a model is asked with them."""
    names = [feature["name"] for feature in FEATURES if feature.get("kind") == "dense"]
    found: dict[str, Any] = {name: batch.dense[:, index] for index, name in enumerate(names)}
    for name, column in batch.ids.items():
        if column.offsets is None:
            found[name] = column.values
            continue
        padded = column.padded()
        found |= {name: padded.ids, f"{name}.lengths": padded.lengths}
        if column.weights is not None:
            found[f"{name}.weights"] = padded.weights
    return found
