"""The Keras skin against plain Keras: the same model, the same data, the same updates."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import recmesh
from recmesh.formats import initial_rows
from recmesh.runtime.errors import InvalidArgument
from recmesh.spec.job import Optimizer
from recmesh.trainer.session import BuildOnly, EmbeddingTable
from tests.support.rows import job_over, write_rows

keras = pytest.importorskip("keras")
import recmesh.keras as skin  # noqa: E402  # only where Keras is installed
from recmesh.keras import EmbeddingCollection  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")   # TensorFlow's own
DIM = 4
OPTIMIZERS: dict[str, tuple[Optimizer, Any]] = {
    "sgd": (Optimizer(kind="sgd", lr=0.5), lambda: keras.optimizers.SGD(0.5)),
    "adagrad": (
        Optimizer(kind="adagrad", lr=0.1, eps=1e-7, initial_accumulator=0.1),
        lambda: keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.1),
    ),
    # Keras adds epsilon before the bias correction, torch and the servers after it: here it is too small to matter.
    "adam": (Optimizer(kind="adam", lr=0.01, eps=1e-12), lambda: keras.optimizers.Adam(0.01, epsilon=1e-12)),
}


def rows_of(table: str, ids: int, dim: int) -> np.ndarray:
    return np.array(initial_rows(7, table=table, ids=np.arange(ids), dim=dim, kind="uniform", scale=0.05))


def constant(value: np.ndarray) -> Any:
    return lambda shape, dtype=None: keras.ops.convert_to_tensor(value, dtype)


def head() -> Any:
    return keras.Sequential([
        keras.layers.BatchNormalization(name="norm"),
        keras.layers.Dense(8, activation="relu", kernel_initializer=keras.initializers.GlorotUniform(1)),
        keras.layers.Dense(1, activation="sigmoid", kernel_initializer=keras.initializers.GlorotUniform(2)),
    ])


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_fit_equals_plain_keras(tmp_path: Path, kind: str) -> None:
    of_tables, make = OPTIMIZERS[kind]
    path = write_rows(tmp_path / "rows.parquet")
    job = recmesh.local_job(job_over(path, training={"epochs": 2}))
    inputs = skin.inputs(job)
    tables = [EmbeddingTable(name, DIM, optimizer=of_tables) for name in ("user", "item")]
    looked = EmbeddingCollection(tables, output="concat")(inputs)
    ours = keras.Model(inputs, head()(keras.layers.Concatenate()([looked, inputs["x"]])))
    ours.compile(make(), loss="binary_crossentropy", metrics=["accuracy"])
    history = ours.fit(skin.attach(job, ours), verbose=0).history

    # One-hot ids times a matrix: Keras' own Embedding squares the gradients of repeated ids one by one in Adagrad.
    user, item, x = keras.Input((5,)), keras.Input((5,)), keras.Input((1,))
    rows = [
        keras.layers.Dense(DIM, use_bias=False, kernel_initializer=constant(rows_of(name, 5, DIM)), name=name)
        for name in ("user", "item")
    ]
    plain = keras.Model([user, item, x], head()(keras.layers.Concatenate()([rows[0](user), rows[1](item), x])))
    plain.compile(make(), loss="binary_crossentropy", metrics=["accuracy"])
    columns = pq.read_table(path).to_pydict()
    one_hot = [np.eye(5, dtype=np.float32)[columns[name]] for name in ("user", "item")]
    data = [*one_hot, np.array(columns["x"], np.float32)[:, None]]
    expected = plain.fit(
        data, np.array(columns["click"], np.float32)[:, None], batch_size=32, epochs=2, shuffle=False, verbose=0
    ).history

    assert history["loss"][0] == pytest.approx(np.mean(expected["loss"]), rel=1e-4)   # ours: one epoch of fit
    held: Any = job.session
    for layer in rows:
        np.testing.assert_allclose(held.tables()[layer.name].values, layer.get_weights()[0], atol=2e-5)
    dense = list(held.dense().values())
    found = sorted(float(np.abs(value).sum()) for value in dense)
    wanted = sorted(float(np.abs(w).sum()) for w in plain.layers[-1].get_weights())
    assert found == pytest.approx(wanted, rel=2e-3)


@pytest.mark.parametrize("pooling", ["sum", "mean", "max"])
@pytest.mark.parametrize("weighted", [False, True])
def test_bags_and_sequences_equal_numpy_forward_and_backward(tmp_path: Path, pooling: Any, weighted: bool) -> None:
    bag: dict[str, Any] = {"name": "tags", "kind": "bag"} | ({"weights": "share"} if weighted else {})
    features = [{"name": "item"}, bag, {"name": "past", "kind": "sequence"}]
    path = write_rows(tmp_path / "rows.parquet", rows=32)
    job = recmesh.local_job(job_over(path, features=features, training={"optimizer": {"kind": "sgd", "lr": 1.0}}))
    inputs = skin.inputs(job)
    tables = [EmbeddingTable("tags", 3, pooling=pooling), EmbeddingTable("item", 3, ["item", "past"], pooling="none")]
    made = EmbeddingCollection(tables)(inputs)
    attended = keras.ops.sum(made["past"] * made["item"][:, None, :], axis=2) * made["past.mask"]
    output = keras.ops.sum(made["tags"], axis=1) + keras.ops.sum(attended, axis=1)
    model = keras.Model(inputs, output)
    model.compile("sgd", loss=lambda y, out: out)    # its gradient is 1 for each sample
    model.fit(skin.attach(job, model), verbose=0)

    columns = pq.read_table(path).to_pydict()
    tags, items = rows_of("tags", 6, 3), rows_of("item", 5, 3)
    tag_grads, item_grads = np.zeros_like(tags), np.zeros_like(items)
    for row in range(32):
        ids, past, item = columns["tags"][row], columns["past"][row], columns["item"][row]
        share = np.array(columns["share"][row]) if weighted else np.ones(len(ids))
        if pooling == "max" and ids:
            for d in range(3):
                tag_grads[ids[int(np.argmax(tags[ids, d]))], d] += 1
        elif ids and pooling == "mean":
            np.add.at(tag_grads, ids, (share / share.sum())[:, None])
        elif ids:
            np.add.at(tag_grads, ids, share[:, None])
        for one in past:
            item_grads[one] += items[item]
            item_grads[item] += items[one]
    held: Any = job.session
    trained = held.tables()
    for name, start, grads in (("tags", tags, tag_grads), ("item", items, item_grads)):
        ids = trained[name].ids
        np.testing.assert_allclose(trained[name].values, (start - grads / 32)[ids], atol=1e-5)


@pytest.mark.parametrize(("make", "reason"), [
    (lambda: keras.optimizers.RMSprop(), "take SGD, Adagrad, Adam or Ftrl"),
    (lambda: keras.optimizers.AdamW(), "AdamW is not applied"),
    (lambda: keras.optimizers.SGD(0.1, momentum=0.9), "no momentum"),
    (lambda: keras.optimizers.Adam(amsgrad=True), "amsgrad"),
    (lambda: keras.optimizers.SGD(0.1, clipnorm=1.0), "clip_norm"),
    (lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)), "lr_schedule"),
])
def test_what_the_servers_do_not_apply_is_refused_with_the_reason(tmp_path: Path, make: Any, reason: str) -> None:
    job = recmesh.local_job(job_over(write_rows(tmp_path / "rows.parquet")))
    inputs = skin.inputs(job)
    model = keras.Model(inputs, keras.layers.Dense(1)(skin.Embedding(EmbeddingTable("user", DIM))(inputs)))
    model.compile(make(), loss="mse")
    with pytest.raises(InvalidArgument) as caught:
        skin.attach(job, model)
    assert reason in str(caught.value)


def test_only_the_model_is_built_where_nothing_is_trained(tmp_path: Path) -> None:
    job = recmesh.local_job(job_over(write_rows(tmp_path / "rows.parquet")))
    job.mode = "build"
    inputs = skin.inputs(job)
    model = keras.Model(inputs, keras.layers.Dense(1)(skin.Embedding(EmbeddingTable("user", DIM))(inputs)))
    model.compile("sgd", loss="mse")
    with pytest.raises(BuildOnly):
        skin.attach(job, model)
    assert job.model is not None


def test_calling_the_model_outside_of_training_says_where_its_rows_are(tmp_path: Path) -> None:
    job = recmesh.local_job(job_over(write_rows(tmp_path / "rows.parquet")))
    inputs = skin.inputs(job)
    model = keras.Model(inputs, skin.Embedding(EmbeddingTable("user", DIM))(inputs))
    with pytest.raises(Exception, match="parameter servers"):
        model({"user": np.zeros(1, np.int64), "item": np.zeros(1, np.int64), "x": np.zeros((1, 1), np.float32)})
