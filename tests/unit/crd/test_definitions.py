"""What the kinds are made of: the committed files, rules in CEL for those of the specifications, jobs as objects."""

import inspect
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from recmesh.crd import definitions, objects, rules
from recmesh.spec.base import Spec
from recmesh.spec.job import TrainingJob

ROOT = Path(__file__).parents[3]
EXAMPLES = [
    file for file in sorted(ROOT.glob("examples/**/*.yaml")) if "keda" not in file.parts and file.name != "join.yaml"
]


def parts(kind: Any) -> set[type[Spec]]:
    """Every specification that a job is made of."""
    found: set[type[Spec]] = set()
    waiting = [kind]
    while waiting:
        item = waiting.pop()
        waiting += get_args(item)
        if inspect.isclass(item) and issubclass(item, Spec) and item not in found:
            found.add(item)
            waiting += [field.annotation for field in item.model_fields.values()]
    return found


def own_rules(kind: type[BaseModel]) -> set[str]:
    return {name for name, item in vars(kind).items() if getattr(item, "is_rule", False)}


def test_the_committed_files_are_what_the_specifications_say() -> None:
    folder = ROOT / "infra" / "base" / "crds"
    written = {file.name: file.read_text() for file in folder.glob("*.yaml") if file.name != "kustomization.yaml"}
    assert written == definitions.files(), "run `python -m recmesh.crd.definitions infra/base/crds`"


def test_every_rule_is_said_in_cel_or_why_it_is_not() -> None:
    for kind in parts(TrainingJob):
        told = set(rules.RULES.get(kind, {}))
        inherited = {name for base in kind.__mro__[1:] if issubclass(base, Spec) for name in own_rules(base)}
        assert own_rules(kind) <= told, f"{kind.__name__} has rules without an entry in recmesh/crd/rules.py"
        assert told <= own_rules(kind) | inherited, f"{kind.__name__} has entries without a rule"


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_an_object_asks_for_what_the_job_does_that_it_was_made_of(file: Path) -> None:
    job = TrainingJob.parse(yaml.safe_load(file.read_text()))
    thing = objects.training_job(job, namespace="ads")
    assert TrainingJob.parse(objects.job_document(thing)) == job.model_copy(update={"namespace": "ads"})
    assert thing["metadata"]["name"] == job.name and "name" not in thing["spec"]


def test_an_object_of_another_name_keeps_the_name_of_its_job() -> None:
    job = TrainingJob.parse({"name": "ads", "model": {"zoo": "dlrm"}, "dataset": "clicks"})
    thing = objects.training_job(job, namespace="prod", name="ads-x2x2x")
    assert TrainingJob.parse(objects.job_document(thing)).name == "ads"


@pytest.mark.parametrize(("field", "value", "written"), [
    (("roles", "worker", "cpu"), 0.25, "250m"),
    (("roles", "worker", "cpu"), 0.0005, "0.5m"),
    (("roles", "worker", "cpu"), 2.0, 2),
    (("roles", "worker", "memory"), "1.5Gi", 1_610_612_736),
])
def test_amounts_are_whole_numbers_or_texts(field: tuple[str, str, str], value: Any, written: Any) -> None:
    _, role, name = field
    job = TrainingJob.parse({"name": "ads", "model": {"zoo": "dlrm"}, "dataset": "d", "roles": {role: {name: value}}})
    thing = objects.training_job(job, namespace="ads")
    assert thing["spec"]["roles"][role][name] == written
    assert TrainingJob.parse(objects.job_document(thing)) == job.model_copy(update={"namespace": "ads"})


def test_moments_and_durations_that_are_no_whole_seconds_are_texts() -> None:
    source = {"jetstream": "clicks", "types": {"user": "int"}, "start": 1_000_000_000.5, "lateness": 0.25}
    data = {"features": [{"name": "user"}], "streams": [{"sources": [source]}]}
    job = TrainingJob.parse({"name": "ads", "model": {"zoo": "dlrm"}, "data": data})
    thing = objects.training_job(job, namespace="ads")
    (found,) = thing["spec"]["data"]["streams"][0]["sources"]
    assert (found["start"], found["lateness"]) == ("2001-09-09T01:46:40.500000+00:00", "0.25s")
    assert TrainingJob.parse(objects.job_document(thing)) == job.model_copy(update={"namespace": "ads"})
