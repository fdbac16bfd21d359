"""What the zoo's torch models can be told about their inputs."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import recmesh
from recmesh.data import whole_dataset
from recmesh.trainer.evaluation import ONE_SERVER
from recmesh.trainer.layout import prepare
from recmesh.trainer.local import LocalJob
from recmesh.zoo.torch import din, dlrm, mmoe, mtrm, torch_dcn_v2
from tests.support.rows import job_over, write_rows

FEATURES: list[dict[str, Any]] = [
    {"name": "user"}, {"name": "item"}, {"name": "past", "kind": "sequence"}, {"name": "x", "kind": "dense"}
]
ZOO = {"dcn": torch_dcn_v2, "dlrm": dlrm, "mmoe": mmoe, "din": din, "mtrm": mtrm}


def trained(tmp_path: Path, which: str, *, rows: int = 96, epochs: int = 1, **params: Any) -> LocalJob:
    spec = job_over(
        write_rows(tmp_path / "rows.parquet", rows=rows), features=FEATURES,
        training={"epochs": epochs, "optimizer": {"kind": "sgd", "lr": 0.01}},
    )
    spec = spec.model_copy(update={"model": spec.model.model_copy(update={"params": params})})
    job = recmesh.local_job(spec)
    ZOO[which].main(job)
    return job


def session_of(job: LocalJob) -> Any:
    return job.session


def predicted(job: LocalJob) -> np.ndarray:
    assert job.spec.data is not None
    assert job.model is not None
    session = session_of(job)
    batch = next(iter(whole_dataset(job.spec.data, batch_size=24)))
    prepared = prepare(batch, session.declared, ONE_SERVER)
    rows, dense = session.fetch(prepared)
    return job.model.predict(batch, rows, prepared.index, dense)


@pytest.mark.parametrize("which", ZOO)
def test_rows_start_within_the_width_asked_for(tmp_path: Path, which: str) -> None:
    asked = session_of(trained(tmp_path, which, embedding_init=0.01))
    usual = session_of(trained(tmp_path, which, embedding_dim=4))
    assert {table.init.scale for table in asked.declared.tables} == {0.01}
    assert {table.init.scale for table in usual.declared.tables} == {0.125}


@pytest.mark.parametrize("which", ZOO)
def test_dense_columns_are_normalised_by_averages_that_training_keeps(tmp_path: Path, which: str) -> None:
    job = trained(tmp_path, which, rows=97, epochs=40, dense_norm=True)   # the last batch is a single row
    dense = session_of(job).dense()
    statistics = {name.rpartition(".")[2]: value for name, value in dense.items() if ".running_" in name}
    x = pq.read_table(tmp_path / "rows.parquet")["x"].to_numpy()
    assert statistics["running_mean"] == pytest.approx([x[:96].mean()], abs=0.1)
    assert statistics["running_var"] == pytest.approx([x[:96].var()], abs=0.2)


@pytest.mark.parametrize("which", ZOO)
def test_dropout_of_embeddings_changes_training_and_spares_serving(tmp_path: Path, which: str) -> None:
    whole, dropped = trained(tmp_path, which), trained(tmp_path, which, embedding_dropout=0.5)
    np.testing.assert_array_equal(predicted(dropped), predicted(dropped))
    values, others = ([*session_of(job).dense().values()] for job in (whole, dropped))
    assert any(not np.array_equal(a, b) for a, b in zip(values, others, strict=True))
