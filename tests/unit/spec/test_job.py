"""The specification: what it takes, what it refuses and in which words, and its page."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from recmesh.runtime.errors import InvalidArgument
from recmesh.spec import reference
from recmesh.spec.job import TrainingJob

ROOT = Path(__file__).parents[3]


def spec(**changes: Any) -> dict[str, Any]:
    data = {"source": {"files": ["a.parquet"]}, "features": [{"name": "user"}]}
    return {"name": "small", "model": {"zoo": "dlrm"}, "data": data} | changes


def violations(**changes: Any) -> dict[str, str]:
    with pytest.raises(InvalidArgument) as caught:
        TrainingJob.parse(spec(**changes))
    return {violation.path: violation.reason for violation in caught.value.violations}


def test_the_reference_page_is_what_the_specification_says() -> None:
    written = (ROOT / "docs" / "reference" / "job.md").read_text()
    assert written == reference.page(), "run `python -m recmesh.spec.reference > docs/reference/job.md`"


@pytest.mark.parametrize("file", sorted(ROOT.glob("examples/**/*.yaml")), ids=lambda file: file.name)
def test_every_example_is_a_valid_job(file: Path) -> None:
    TrainingJob.parse(yaml.safe_load(file.read_text()))


def test_quantities_are_read_as_kubernetes_writes_them() -> None:
    worker = TrainingJob.parse(spec(roles={"worker": {"cpu": "500m", "memory": "1.5Gi"}})).roles.worker
    assert (worker.cpu, worker.memory) == (0.5, 1_610_612_736)


def test_every_wrong_field_is_named_at_once() -> None:
    found = violations(name="Not A Label", training={"batch_size": 0, "epoch": 2}, data={"source": {"files": []}})
    assert set(found) == {
        "name", "training.batch_size", "training.epoch", "data.source.files", "data.features"
    }
    assert found["training.epoch"] == "there is no such field"


@pytest.mark.parametrize(("changes", "path", "words"), [
    ({"roles": {"worker": {"min": 3, "max": 2}}}, "roles.worker.min", "min 3 is above max 2"),
    ({"roles": {"worker": {"memory": "2 cups"}}}, "roles.worker.memory", "no amount of memory"),
    ({"roles": {"ps": {"replicas": 0, "min": 0}}}, "roles.ps.replicas", "at least one parameter server"),
    ({"roles": {"data": {"max": 1}}}, "roles.data.max", "workers read files themselves"),
    ({"model": {"zoo": "dlrm", "entrypoint": "a:b"}}, "model", "either zoo or entrypoint"),
    ({"model": {"entrypoint": "not an entry"}}, "model.entrypoint", "pattern"),
    ({"dataset": "also"}, "data", "either data or dataset"),
    ({"evaluation": {}}, "evaluation", "either data or rows"),
    ({"training": {"early_stopping": {}}}, "training.early_stopping", "needs evaluation.every_s"),
    ({"training": {"lr_schedule": [{"step": 5, "factor": 1}, {"step": 5, "factor": 0}]}},
     "training.lr_schedule", "steps must ascend"),
    ({"init_from": {}}, "init_from", "either job or model"),
    ({"evaluation": {"rows": [0.9, 0.1]}}, "evaluation.rows", "two fractions"),
    ({"evaluation": {"rows": [1.5, 2]}}, "evaluation.rows", "two fractions"),
])
def test_what_does_not_fit_together_is_refused_with_the_reason(changes: dict[str, Any], path: str, words: str) -> None:
    found = violations(**changes)
    assert path in found and words in found[path], found


def test_rules_over_several_fields_are_all_told_each_with_its_own_path() -> None:
    roles = {"data": {"replicas": 1, "max": 1}, "ps": {"replicas": 0}}
    found = violations(roles=roles, training={"early_stopping": {}}, evaluation={"rows": [0.9, 0.1]}, dataset="also")
    assert set(found) == {
        "roles.data.replicas", "roles.ps.replicas", "training.early_stopping", "evaluation.rows", "data"
    }


def test_a_wrong_field_hides_no_rule_that_does_not_need_it() -> None:
    found = violations(
        name="Not A Label", roles={"data": {"replicas": 1, "max": 1}, "ps": {"replicas": 0}},
        training={"batch_size": -4, "early_stopping": {}, "optimizer": {"lr": "much"}},
        model={"zoo": "dlrm", "entrypoint": "a:b", "params": 3},
    )
    assert set(found) == {
        "name", "roles.data.replicas", "roles.ps.replicas", "training.batch_size", "training.early_stopping",
        "training.optimizer.lr", "model.params", "model",
    }


def test_a_rule_that_needs_a_wrong_field_is_silent() -> None:
    assert set(violations(roles={"worker": {"min": 3, "max": "two"}})) == {"roles.worker.max"}
    assert set(violations(evaluation={"rows": [0, 1], "every_s": "x"}, training={"early_stopping": {}})) == {
        "evaluation.every_s"
    }
    assert set(violations(roles=7, training=[])) == {"roles", "training"}
