"""Mixed training in Keras: the towers take turns, what has none stays as it is, and the adapt tower serves."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recmesh
from recmesh.data import Batch, whole_dataset
from recmesh.runtime.errors import InvalidArgument
from recmesh.spec.job import TrainingJob
from recmesh.trainer.evaluation import ONE_SERVER
from recmesh.trainer.layout import prepare
from recmesh.trainer.local import LocalJob
from recmesh.trainer.session import EmbeddingTable
from tests.support.hours import modes, write_hours

pytest.importorskip("keras")
import keras  # only where it is installed
import tensorflow as tf

import recmesh.keras
from recmesh.keras import AdaptTower, EmbeddingCollection, MemoryTower, MixedTowers

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")   # TensorFlow's own
HOURS = 3


@pytest.fixture(scope="module")
def hours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hours")
    write_hours(root, hours=HOURS)
    return root


def trained(hours: Path, mode: str, *, shared: bool = False, kind: str = "adam") -> LocalJob:
    job = recmesh.local_job(TrainingJob.parse({
        "name": "mixed", "model": {"entrypoint": "here:main"}, "data": modes(hours, hours=HOURS)[mode],
        "training": {"batch_size": 32, "seed": 5, "optimizer": {"kind": kind, "lr": 0.02}},
    }))
    inputs = recmesh.keras.inputs(job)
    names = list(job.id_features)
    looked = EmbeddingCollection([EmbeddingTable(name, 4) for name in names], output="concat")(inputs)
    own = looked if shared else EmbeddingCollection(
        [EmbeddingTable(f"adapt.{name}", 3 if name == "user" else 4, [name]) for name in names], output="concat"
    )(inputs)
    towers = MixedTowers(MemoryTower([8], dropout=0.2, name="memory"), AdaptTower([6], name="adapt"), name="towers")
    answer = keras.layers.Activation("sigmoid")(towers(looked, own))
    model = keras.Model(inputs, answer)
    optimizer = keras.optimizers.Adam(0.02) if kind == "adam" else keras.optimizers.Adagrad(0.02)
    model.compile(optimizer, loss="binary_crossentropy")
    model.fit(recmesh.keras.attach(job, model), verbose=0)
    return job


def state(job: LocalJob) -> dict[str, np.ndarray]:
    session: Any = job.session
    made = {name: value.copy() for name, value in session.dense().items()}
    return made | {f"table {name}": rows.values for name, rows in session.tables().items()}


def predicted(job: LocalJob, batch: Batch) -> np.ndarray:
    session: Any = job.session
    assert job.model is not None
    prepared = prepare(batch, session.declared, ONE_SERVER)
    rows, dense = session.fetch(prepared)
    return job.model.predict(batch, rows, prepared.index, dense)


def of_memory(name: str) -> bool:
    return "/memory/" in name or name in ("table user", "table item")


def test_a_pure_stream_leaves_the_memory_tower_and_its_tables_bit_for_bit_as_they_began(hours: Path) -> None:
    job = trained(hours, "stream")
    assert job.model is not None
    initial = {block.name: block.value for block in job.model.dense}
    after = state(job)
    for name, value in initial.items():
        assert (after[name].tobytes() == value.tobytes()) == of_memory(name), name
    assert len(after["table user"]) == len(after["table item"]) == 0
    assert len(after["table adapt.user"]) == 9 and len(after["table adapt.item"]) == 5


def test_batches_and_then_a_stream_train_each_tower_on_its_own_kind(hours: Path) -> None:
    batches, both = (state(trained(hours, mode, kind="adagrad")) for mode in ("batch", "batch_then_stream"))
    assert set(batches) == set(both)
    statistics = {name for name in both if "seed_generator" in name}
    for name in set(both) - statistics:
        same = batches[name].shape == both[name].shape and batches[name].tobytes() == both[name].tobytes()
        assert same == of_memory(name), name


def test_shared_embeddings_learn_from_the_stream_too(hours: Path) -> None:
    job = trained(hours, "stream", shared=True)
    assert job.model is not None
    initial = {block.name: block.value for block in job.model.dense if of_memory(block.name)}
    after = state(job)
    assert initial and all(after[name].tobytes() == value.tobytes() for name, value in initial.items())
    assert len(after["table user"]) == 9


@pytest.mark.parametrize("shared", [False, True])
def test_what_is_exported_answers_as_the_adapt_tower(hours: Path, tmp_path: Path, shared: bool) -> None:
    job = trained(hours, "mixed", shared=shared)
    batch = next(iter(whole_dataset(job.data, batch_size=24)))
    job.export(tmp_path / "model")
    served = tf.saved_model.load(str(tmp_path / "model" / "saved_model")).signatures["serving_default"]
    inputs = {name: tf.constant(column.values) for name, column in batch.ids.items()}
    made = served(**inputs, x=tf.constant(batch.dense[:, 0]))["predictions"].numpy()
    expected = predicted(job, batch)
    np.testing.assert_allclose(made, expected, atol=1e-6)
    assert len(set(expected)) > 3


def test_tables_that_share_some_features_only_are_refused(hours: Path) -> None:
    job = recmesh.local_job(TrainingJob.parse({
        "name": "mixed", "model": {"entrypoint": "here:main"}, "data": modes(hours, hours=HOURS)["batch"],
    }))
    inputs = recmesh.keras.inputs(job)
    tables = [EmbeddingTable("one", 4, ["user"]), EmbeddingTable("two", 4, ["user", "item"])]
    looked = [EmbeddingCollection([table], output="concat")(inputs) for table in tables]
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(looked)))
    model.compile("adagrad", loss="mse")
    with pytest.raises(InvalidArgument, match="can't be fed"):
        recmesh.keras.attach(job, model)
