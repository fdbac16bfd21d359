"""What a model declares, against what its job says of it."""

from collections.abc import Mapping

import pytest

from recmesh.runtime.errors import InvalidArgument
from recmesh.spec.job import TrainingJob
from recmesh.trainer.layout import declaration
from recmesh.trainer.session import EmbeddingTable

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
