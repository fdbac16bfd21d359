"""What the zoo's Keras models can be told about their inputs, and that what is exported heeds it."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import recmesh
from recmesh.data import whole_dataset
from recmesh.runtime.errors import InvalidArgument
from recmesh.serving import halves
from recmesh.serving.fresh.program import open_fresh
from recmesh.serving.settings import ServingSettings
from recmesh.trainer.evaluation import ONE_SERVER
from recmesh.trainer.layout import prepare
from recmesh.trainer.local import LocalJob
from tests.support.rows import job_over, write_rows

pytest.importorskip("keras")
import tensorflow as tf  # only where Keras is installed

from recmesh.serving.programs.tensorflow_program import TensorFlowFramework
from recmesh.zoo.keras import dcn_v2, deepfm, wide_deep, xdeepfm

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")   # TensorFlow's own
SMALL: dict[str, Any] = {"embedding_dim": 4, "hidden": [8]}
ZOO: dict[str, tuple[Any, dict[str, Any]]] = {
    "wide_deep": (wide_deep, SMALL),
    "deepfm": (deepfm, SMALL),
    "xdeepfm": (xdeepfm, SMALL | {"cin": [2]}),
    "dcn": (dcn_v2, SMALL | {"cross_layers": 1}),
}


def trained(tmp_path: Path, which: str, *, epochs: int = 1, **options: Any) -> LocalJob:
    module, params = ZOO[which]
    spec = job_over(
        write_rows(tmp_path / "rows.parquet"),
        training={"epochs": epochs, "optimizer": {"kind": "sgd", "lr": 0.05}},
    )
    spec = spec.model_copy(update={"model": spec.model.model_copy(update={"params": params | options})})
    job = recmesh.local_job(spec)
    module.main(job)
    return job


@pytest.mark.parametrize("which", ZOO)
def test_what_is_exported_serves_normalised_columns_and_drops_nothing(tmp_path: Path, which: str) -> None:
    job = trained(tmp_path, which, epochs=40, embedding_init=0.01, embedding_dropout=0.5, dense_norm=True)
    session: Any = job.session
    assert {table.init.scale for table in session.declared.tables} == {0.01}
    mean, = (value for name, value in session.dense().items() if name.endswith("dense_norm/moving_mean"))
    assert mean == pytest.approx([pq.read_table(tmp_path / "rows.parquet")["x"].to_numpy().mean()], abs=0.1)

    assert job.spec.data is not None
    assert job.model is not None
    batch = next(iter(whole_dataset(job.spec.data, batch_size=24)))
    prepared = prepare(batch, session.declared, ONE_SERVER)
    rows, dense = session.fetch(prepared)
    expected = job.model.predict(batch, rows, prepared.index, dense)
    job.export(tmp_path / "model")
    served = tf.saved_model.load(str(tmp_path / "model" / "saved_model")).signatures["serving_default"]
    inputs = {name: tf.constant(column.values) for name, column in batch.ids.items()}
    made = served(x=tf.constant(np.ascontiguousarray(batch.dense[:, 0])), **inputs)
    assert set(made) == {"predictions"}
    np.testing.assert_allclose(made["predictions"].numpy(), expected, rtol=1e-4, atol=1e-6)


def test_dropout_of_embeddings_changes_training(tmp_path: Path) -> None:
    whole: Any = trained(tmp_path, "wide_deep").session
    dropped: Any = trained(tmp_path, "wide_deep", embedding_dropout=0.5).session
    values, others = (session.tables()["user"].values for session in (whole, dropped))
    assert not np.array_equal(values[:, :4], others[:, :4])


def test_options_of_another_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="don't fit"):
        trained(tmp_path, "wide_deep", dense_norm=0.5)


@pytest.mark.parametrize("which", ["deepfm", "dcn"])
def test_a_model_with_its_tables_beside_it_predicts_alike(tmp_path: Path, which: str) -> None:
    job = trained(tmp_path, which, dense_norm=True)
    session: Any = job.session
    assert job.spec.data is not None
    assert job.model is not None
    batch = next(iter(whole_dataset(job.spec.data, batch_size=24)))
    prepared = prepare(batch, session.declared, ONE_SERVER)
    rows, dense = session.fetch(prepared)
    expected = job.model.predict(batch, rows, prepared.index, dense)
    folder = tmp_path / "model"
    job.export_apart(folder)
    found = halves.part(folder)
    assert found.card.apart is not None
    inner: Any = TensorFlowFramework().load(folder, found.card.program, tunable=True)
    wrong = {name: np.zeros_like(value) for name, value in dense.items()}
    inner.use(inner.placed(wrong))                  # and what the version has takes their place
    fresh = open_fresh(inner, folder, found.card, found.card.apart, ServingSettings(), log=print)
    fresh.sparse.begin()
    try:
        inputs = {name: column.values for name, column in batch.ids.items()}
        made = fresh.run({"x": np.ascontiguousarray(batch.dense[:, 0]), **inputs})
    finally:
        fresh.sparse.close()
    np.testing.assert_allclose(made["predictions"], expected, rtol=1e-4, atol=1e-6)
