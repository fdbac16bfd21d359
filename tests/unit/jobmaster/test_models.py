"""What is refused of a model at submit, before anything is started."""

from typing import Any, get_args

import pytest

from recmesh.spec.job import Model, TrainingJob
from recmesh.trainer.build import build
from recmesh.zoo import needs
from recmesh.zoo.defaults import DEFAULTS
from services.jobmaster.domain.models import evaluation_violations, model_violations

IDS = [{"name": "user"}, {"name": "item"}]
HISTORY = {"name": "seen", "kind": "sequence"}
PRICE, AGE = {"name": "price", "kind": "dense"}, {"name": "age", "kind": "dense"}


def data(*features: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"source": {"files": ["a.parquet"]}, "features": list(features or IDS)} | changes


def job(zoo: str = "dlrm", *, params: dict[str, Any] | None = None, **changes: Any) -> TrainingJob:
    model = {"zoo": zoo, "params": params or {}} if zoo else {"entrypoint": "mine:main", "params": params or {}}
    return TrainingJob.parse({"name": "ads", "model": model, "data": data()} | changes)


def found(spec: TrainingJob) -> dict[str, str]:
    return {item.path: item.reason for item in model_violations(spec) + evaluation_violations(spec)}


def test_every_model_of_the_zoo_has_its_defaults() -> None:
    assert set(DEFAULTS) == set(get_args(Model.model_fields["zoo"].annotation)) - {""}


def test_an_unknown_parameter_of_a_zoo_model_is_named_with_those_that_there_are() -> None:
    wrong = found(job(params={"foo": 1, "embedding_dim": "abc", "top": [0], "dropout": 0.5}))
    assert set(wrong) == {"model.params.foo", "model.params.embedding_dim", "model.params.top"}
    assert "embedding_dim" in wrong["model.params.foo"] and "bottom" in wrong["model.params.foo"]
    assert found(job("dcn_v2", params={"structure": "sideways"})) == {
        "model.params.structure": "must be parallel or stacked"
    }


def test_a_model_of_ones_own_may_have_any_parameter() -> None:
    assert found(job("", params={"foo": 1, "structure": "mine"}, training={"table_optimizers": {"any": {}}})) == {}


@pytest.mark.parametrize(("zoo", "features", "words"), [
    ("din", IDS, "needs a sequence feature"),
    ("din", [HISTORY], "needs a single feature"),
    ("mmoe", IDS, "needs several"),
    ("wide_deep", [PRICE], "needs a feature with ids"),
])
def test_data_that_a_zoo_model_cannot_use_is_refused(zoo: str, features: list[dict[str, Any]], words: str) -> None:
    assert words in found(job(zoo, data=data(*features)))["model.zoo"]


def test_the_features_that_din_is_told_to_use_must_be_there() -> None:
    wrong = found(job("din", params={"candidate": "seen", "history": "past"}, data=data(*IDS, HISTORY)))
    assert set(wrong) == {"model.params.candidate", "model.params.history"}
    assert "user, item" in wrong["model.params.candidate"]


def test_an_optimizer_for_a_table_that_is_not_there_is_refused() -> None:
    optimizers: dict[str, Any] = {"table_optimizers": {"nosuch": {}, "user": {}, "*": {}}}
    wrong = found(job(training=optimizers))
    assert wrong == {"training.table_optimizers.nosuch": "the model has no such table; it has user, item"}
    assert set(found(job(training=optimizers, params={"foo": 1}))) == {*wrong, "model.params.foo"}
    assert set(found(job("din", training=optimizers))) == {"model.zoo"}   # its tables are not known


@pytest.mark.parametrize(("zoo", "params"), [
    ("dlrm", {}), ("torch_dcn_v2", {}), ("mmoe", {}), ("din", {}), ("din", {"share_table": False}),
    ("din", {"candidate": "item", "history": "later"}), ("mtrm", {}), ("mtrm", {"embedding": "shared"}),
])
def test_the_tables_of_a_zoo_model_are_known_before_it_is_built(zoo: str, params: dict[str, Any]) -> None:
    features = [*IDS, HISTORY, {"name": "later", "kind": "sequence"}, {"name": "tags", "kind": "bag"}, PRICE]
    spec = job(zoo, params=params, data=data(*features, labels=["click", "buy"]))
    assert found(spec) == {} and spec.data is not None
    built = build(spec, job_id="ads")
    assert {table.name for table in built.declared.tables} == set(needs.tables(spec.model, spec.data))
    assert {table.dim for table in built.declared.tables} == {needs.row_width(spec.model)}


def test_evaluation_data_must_have_what_the_model_takes_and_predicts() -> None:
    def judged(*features: dict[str, Any], **changes: Any) -> dict[str, str]:
        ours = data(*IDS, PRICE, AGE)
        return found(job(data=ours, evaluation={"data": data(*features, **changes)}))

    assert judged(*reversed(IDS), PRICE, AGE, HISTORY) == {}
    assert "item (single)" in judged(IDS[0], PRICE, AGE)["evaluation.data.features"]
    assert judged(IDS[0], {"name": "item", "kind": "bag"}, PRICE, AGE) == {
        "evaluation.data.features.item": "is bag here and single in data"
    }
    assert "price, age" in judged(*IDS, AGE, PRICE)["evaluation.data.features"]
    assert "label" in judged(*IDS, PRICE, AGE, labels=["click", "buy"])["evaluation.data.labels"]


def test_a_policy_for_a_table_that_is_not_there_is_refused() -> None:
    wrong = found(job(training={"tables": {"nosuch": {}, "user": {}, "*": {}}}))
    assert wrong == {"training.tables.nosuch": "the model has no such table; it has user, item"}
