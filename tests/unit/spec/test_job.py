"""The specification: what it takes, what it refuses and in which words, and its page."""

import math
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from recmesh.runtime.errors import InvalidArgument
from recmesh.spec import reference
from recmesh.spec.job import HYPERPARAMETERS, LEAST_RATE, MOST, LrPoint, Optimizer, TrainingJob
from recmesh.spec.join import LabelJoin
from recmesh.trainer.ps.rpc.convert import optimizer
from recmesh.trainer.wire.servers import optimizer_to

ROOT = Path(__file__).parents[3]
EDGES = dict.fromkeys(("weight_decay", "initial_accumulator", "l1", "l2"), (0.0, MOST)) | {
    "lr": (LEAST_RATE, MOST), "eps": (1e-30, MOST), "beta1": (0.0, 0.999_999), "beta2": (0.0, 0.999_999),
}


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


JOBS = [
    file for file in sorted(ROOT.glob("examples/**/*.yaml")) if "keda" not in file.parts and file.name != "join.yaml"
]


@pytest.mark.parametrize("file", JOBS, ids=lambda file: file.name)
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
    ({"roles": {"data": {"accept_below": 5}}}, "roles.data.accept_below", "above refuse_above 4"),
    ({"roles": {"data": {"memory": "300Mi"}}}, "roles.data.buffer", "less than 64 MiB"),
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
    ({"training": {"optimizer": {"kind": "ftrl"}, "lr_schedule": [{"step": 5, "factor": 0}]}},
     "training.lr_schedule.0.factor", "ftrl divides by the rate"),
    ({"training": {"table_optimizers": {"user": {"kind": "sgd", "l1": 1.0}}}}, "training.table_optimizers.user.l1",
     "sgd does not use it; it goes by lr, weight_decay"),
    ({"training": {"optimizer": {"kind": "adam", "initial_accumulator": 0.1}}},
     "training.optimizer.initial_accumulator", "adam does not use it"),
    ({"model": {"zoo": "dlrm", "params": {"layers": [{"rate": math.nan}]}}}, "model.params.layers.0.rate", "finite"),
    ({"model": {"zoo": "dlrm", "params": {"since": date(2026, 1, 1)}}}, "model.params.since", "a date is nothing"),
    ({"model": {"zoo": "dlrm", "params": {"of": {1: 2}}}}, "model.params.of", "the key 1 is no string"),
    ({"roles": {"ps": {"pod_template": {"spec": {"grace": math.inf}}}}}, "roles.ps.pod_template.spec.grace", "finite"),
    *(({"roles": {role: {"memory": 1}}}, f"roles.{role}.memory", "less than the 64 MiB that a process needs")
      for role in ("ps", "worker", "evaluator")),
    ({"roles": {"ps": {"memory": "9" * 400 + "Ti"}}}, "roles.ps.memory", "more memory than there is"),
])
def test_what_does_not_fit_together_is_refused_with_the_reason(changes: dict[str, Any], path: str, words: str) -> None:
    found = violations(**changes)
    assert path in found and words in found[path], found


NUMBERS = [
    "training.optimizer.lr", "training.optimizer.beta1", "training.optimizer.eps", "training.optimizer.weight_decay",
    "training.optimizer.initial_accumulator", "training.clip_norm", "training.early_stopping.min_delta",
    "checkpoint.every_s", "deadline", "active_deadline_s", "ttl_after_end_s", "roles.worker.cpu", "roles.worker.gpu",
    "data.label_above",
]


def nested(path: str, value: Any) -> dict[str, Any]:
    """A specification with one field set."""
    made = spec(evaluation={"rows": [0.8, 1.0], "every_s": 1.0})
    *parents, last = path.split(".")
    inner = made
    for name in parents:
        inner = inner.setdefault(name, {})
    inner[last] = value
    return made


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, "1e309"])
@pytest.mark.parametrize("path", NUMBERS)
def test_numbers_that_json_has_not_are_refused_by_field(path: str, value: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        TrainingJob.parse(nested(path, value))
    assert [violation.path for violation in caught.value.violations] == [path]


@pytest.mark.parametrize(("path", "value"), [
    ("training.optimizer.lr", 1e300), ("training.optimizer.lr", 1e-46), ("training.clip_norm", 1e300),
    ("training.optimizer.eps", 1e-46), ("checkpoint.every_s", 1e-9), ("training.staleness", 2**40),
    ("training.tables", {"user": {"max_bytes": 1}}), ("training.optimizer", {"kind": "adam", "beta1": 1.0}),
    ("training.optimizer", {"kind": "adam", "beta2": 0.999_999_99}),
])
def test_numbers_that_nothing_can_be_trained_with_are_refused(path: str, value: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        TrainingJob.parse(nested(path, value))
    assert next(violation.path for violation in caught.value.violations).startswith(path)


@pytest.mark.parametrize("name", ["lr", *sorted({name for names in HYPERPARAMETERS.values() for name in names})])
@pytest.mark.parametrize("kind", HYPERPARAMETERS)
@pytest.mark.parametrize("end", ["least", "most"])
def test_what_a_job_may_ask_for_a_parameter_server_takes(kind: str, name: str, end: str) -> None:
    least, most = EDGES[name]
    value = least if end == "least" else most
    if name != "lr" and name not in HYPERPARAMETERS[kind]:
        with pytest.raises(InvalidArgument):
            Optimizer.parse({"kind": kind, name: most})
        return
    asked = Optimizer.parse({"kind": kind, name: value})
    served = optimizer(optimizer_to(asked, [LrPoint(step=0, factor=1e-3)]), "optimizer")
    assert getattr(served, name) == value and not served.violations("optimizer")
    assert np.isfinite(served.hyper(0)).all() and np.isfinite(served.bias()).all()
    with pytest.raises(InvalidArgument):
        Optimizer.parse({"kind": kind, name: most * 1.01 if most > 1 else 1.0})


def test_rules_over_several_fields_are_all_told_each_with_its_own_path() -> None:
    roles = {"data": {"accept_below": 9}, "ps": {"replicas": 0}}
    found = violations(roles=roles, training={"early_stopping": {}}, evaluation={"rows": [0.9, 0.1]}, dataset="also")
    assert set(found) == {
        "roles.data.accept_below", "roles.ps.replicas", "training.early_stopping", "evaluation.rows", "data"
    }


def test_a_wrong_field_hides_no_rule_that_does_not_need_it() -> None:
    found = violations(
        name="Not A Label", roles={"data": {"accept_below": 9}, "ps": {"replicas": 0}},
        training={"batch_size": -4, "early_stopping": {}, "optimizer": {"lr": "much"}},
        model={"zoo": "dlrm", "entrypoint": "a:b", "params": 3},
    )
    assert set(found) == {
        "name", "roles.data.accept_below", "roles.ps.replicas", "training.batch_size", "training.early_stopping",
        "training.optimizer.lr", "model.params", "model",
    }


def test_a_rule_that_needs_a_wrong_field_is_silent() -> None:
    assert set(violations(roles={"worker": {"min": 3, "max": "two"}})) == {"roles.worker.max"}
    assert set(violations(evaluation={"rows": [0, 1], "every_s": "x"}, training={"early_stopping": {}})) == {
        "evaluation.every_s"
    }
    assert set(violations(roles=7, training=[])) == {"roles", "training"}


def test_the_example_of_a_join_makes_what_its_job_reads() -> None:
    folder = ROOT / "examples" / "flights"
    join = LabelJoin.parse(yaml.safe_load((folder / "join.yaml").read_text()))
    job = TrainingJob.parse(yaml.safe_load((folder / "loop_job.yaml").read_text()))
    assert join.topic is not None and job.data is not None and job.export is not None
    assert job.data.streams[0].sources[0].jetstream == f"{join.topic.topic}-*"
    assert job.data.label_columns == [join.label]
    assert job.export.serving["log"]["topic"] == join.samples.topic
