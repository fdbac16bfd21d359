"""What a model declares, against what its job says of it."""

from collections.abc import Mapping

import pytest

from recmesh.pb import ps_pb2
from recmesh.runtime.errors import InvalidArgument
from recmesh.spec.job import TablePolicy, TrainingJob
from recmesh.trainer.layout import declaration
from recmesh.trainer.ps.rpc.convert import declaration as from_wire
from recmesh.trainer.session import EmbeddingTable
from recmesh.trainer.wire.servers import table_to

TABLES = [EmbeddingTable("user", 8), EmbeddingTable("item", 8)]


def job(**table_optimizers: Mapping[str, object]) -> TrainingJob:
    return TrainingJob.parse({
        "name": "ads", "model": {"entrypoint": "mine:main"}, "training": {"table_optimizers": table_optimizers},
        "data": {"source": {"files": ["a.parquet"]}, "features": [{"name": "user"}, {"name": "item"}]},
    })


def test_tables_get_their_own_optimizer_or_that_of_all_others() -> None:
    declared = declaration(job(user={"lr": 0.5}, **{"*": {"kind": "sgd"}}), TABLES, [])
    assert [(table.optimizer.kind, table.optimizer.lr) for table in declared.tables] == [
        ("adagrad", 0.5), ("sgd", 0.02)
    ]


def test_an_optimizer_for_a_table_that_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(InvalidArgument) as caught:
        declaration(job(nosuch={}, user={}), TABLES, [])
    (violation,) = caught.value.violations
    assert violation.path == "training.table_optimizers.nosuch" and "user, item" in violation.reason


def test_tables_get_the_jobs_policy_then_their_own_then_that_of_all_others_and_it_reaches_the_store() -> None:
    spec = TrainingJob.parse({
        "name": "ads", "model": {"entrypoint": "mine:main"},
        "training": {"tables": {"user": {"min_frequency": 3, "max_bytes": "1Gi"}, "*": {"ttl_steps": 9}}},
        "data": {"source": {"files": ["a.parquet"]}, "features": [{"name": n} for n in ("user", "item", "ad")]},
    })
    tables = [TABLES[0], EmbeddingTable("item", 8, policy=TablePolicy(dtype="bfloat16")), EmbeddingTable("ad", 8)]
    declared = declaration(spec, tables, [])
    request = ps_pb2.DeclareRequest(tables=[table_to(table) for table in declared.tables])
    schemas = from_wire(request)[0].tables
    assert [(s.min_frequency, s.ttl_steps, s.max_bytes, s.dtype) for s in schemas] == [
        (3, 0, 1 << 30, "float32"), (1, 0, 0, "bfloat16"), (1, 9, 0, "float32")]


def test_a_policy_for_a_table_that_the_model_does_not_have_is_refused() -> None:
    spec = job().model_copy(deep=True)
    spec = spec.model_copy(update={"training": spec.training.model_copy(update={"tables": {"nosuch": TablePolicy()}})})
    with pytest.raises(InvalidArgument) as caught:
        declaration(spec, TABLES, [])
    assert [violation.path for violation in caught.value.violations] == ["training.tables.nosuch"]
