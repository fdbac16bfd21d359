"""The kinds in a real API server: taken whole, with the defaults of the specifications, refusing in their words."""

import asyncio
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from recmesh.crd import definitions, objects, rules
from recmesh.crd.amounts import AMOUNTS
from recmesh.runtime.errors import InvalidArgument
from recmesh.runtime.kube import Access, Resource, connect, recmesh_resource
from recmesh.spec.dataset import DatasetSpec
from recmesh.spec.job import TrainingJob
from tests.support.kube import KubeCluster, with_kinds
from tests.unit.crd.test_definitions import EXAMPLES

pytestmark = pytest.mark.integration
JOBS = recmesh_resource("trainingjobs", "TrainingJob")
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeCluster]:
    with with_kinds(tmp_path_factory.mktemp("kube") / "cluster") as made:
        yield made


def job(**spec: Any) -> dict[str, Any]:
    data = {"source": {"files": ["a.parquet"]}, "features": [{"name": "user"}]}
    return {"name": "small", "model": {"zoo": "dlrm"}, "data": data} | spec


def thing_of(document: dict[str, Any]) -> dict[str, Any]:
    spec = {name: value for name, value in document.items() if name != "name"}
    return {
        "apiVersion": objects.API_VERSION, "kind": "TrainingJob", "spec": spec,
        "metadata": {"name": document["name"], "namespace": "default"},
    }


def source(**fields: Any) -> dict[str, Any]:
    return job(data={"source": {"files": ["a"]} | fields, "features": [{"name": "user"}]})


def stream(
    *sources: dict[str, Any], window: Any = 3600, more: dict[str, Any] | None = None, **spec: Any
) -> dict[str, Any]:
    files = {"files": ["{YYYY}{MM}{DD}{HH}"], "start": 0, "end": 7200}
    topic = {"jetstream": "clicks", "types": {"user": "int"}, "start": "earliest", "end": 7200}
    made = [(topic if {"jetstream", "kafka"} & set(given) else files) | given for given in sources]
    data = {"streams": [{"window": window, "sources": made}], "features": [{"name": "user"}]}
    return job(data=data | (more or {}), **spec)


def feature(**fields: Any) -> dict[str, Any]:
    return job(data={"source": {"files": ["a"]}, "features": [{"name": "user"} | fields]})


def role(name: str = "worker", **fields: Any) -> dict[str, Any]:
    return job(roles={name: fields})


TOPIC = {"jetstream": "clicks"}
SCALING = {"planner": "hpa"}
WRONG: dict[tuple[str, str], list[dict[str, Any]]] = {
    ("Optimizer", "_hyperparameters_are_used"): [
        job(training={"optimizer": {"kind": "ftrl", "beta1": 0.5}}),
        job(training={"table_optimizers": {"user": {"kind": "sgd", "l1": 1}}}),
    ],
    ("Model", "_one_model"): [job(model={}), job(model={"zoo": "dlrm", "entrypoint": "a:b"})],
    ("Model", "_code_has_entrypoint"): [job(model={"code": "here"})],
    ("Role", "_min_below_max"): [role(min=3, max=2)],
    ("Role", "_replicas_below_max"): [role(replicas=9)],
    ("Role", "_memory_below_its_max"): [role(memory="2Gi", memory_max="1Gi"), role(memory_max="1Gi")],
    ("Role", "_memory_suffices_for_a_process"): [role(memory="1Mi"), role(memory=1000)],
    ("DataRole", "_room_begins_below_its_end"): [role("data", accept_below=5)],
    ("DataRole", "_buffer_fits_into_memory"): [role("data", memory="300Mi")],
    ("Training", "_staleness_is_of_asynchronous_mode"): [
        job(training={"sync": {"batches_per_step": 2}, "staleness": 4}),
    ],
    ("Training", "_ftrl_divides_by_its_rate"): [
        job(training={"optimizer": {"kind": "ftrl"}, "lr_schedule": [{"step": 5, "factor": 0}]}),
    ],
    ("Training", "lr_schedule"): [
        job(training={"lr_schedule": [{"step": 5, "factor": 1}, {"step": 5, "factor": 0.5}]}),
        job(training={"lr_schedule": [{"step": 5, "factor": 1}, {"step": 4, "factor": 0.5}]}),
    ],
    ("Evaluation", "_data_or_rows"): [job(evaluation={})],
    ("Evaluation", "_rows_are_fractions"): [job(evaluation={"rows": [0.9, 0.1]}), job(evaluation={"rows": [1.5, 2]})],
    ("FailureRule", "_one_matcher"): [job(pod_failure_policy={"rules": [{"action": "Ignore"}]})],
    ("PodGroupPolicy", "_one_scheduler"): [job(pod_group_policy={})],
    ("Tracking", "_somewhere"): [job(tracking={})],
    ("InitFrom", "_one_source"): [job(init_from={}), job(init_from={"job": "a", "model": "b"})],
    ("Scaling", "_steps_are_of_whole_measurements"): [stream(TOPIC, scaling=SCALING | {"step_s": 15})],
    ("Scaling", "_the_horizon_has_steps"): [
        stream(TOPIC, scaling=SCALING | {"horizon_s": 60}),
        stream(TOPIC, scaling=SCALING | {"step_s": 10, "horizon_s": 9000}),
    ],
    ("DatasetSpec", "_source_or_streams"): [
        job(data={"features": [{"name": "user"}]}), stream({}, more={"source": {"files": ["a"]}}),
    ],
    ("Feature", "_weights_of_bags"): [feature(weights="w")],
    ("Feature", "_transform_of_numbers"): [feature(transform="log1p")],
    ("Feature", "_columns_instead_of_one"): [
        feature(columns=["a", "b"], column="c"), feature(columns=["a", "b"], kind="bag"),
    ],
    ("Feature", "_steps_fit_the_kind"): [
        feature(clip=[0, 1]), feature(kind="dense", buckets=5), feature(kind="dense", boundaries=[1]),
        feature(kind="dense", vocabulary=["a"]), feature(boundaries=[1], vocabulary=["a"]),
        feature(columns=["a", "b"], vocabulary=["a"]),
    ],
    ("Feature", "_numbers_are_ordered"): [feature(boundaries=[2, 1])],
    ("Source", "_rows_are_fractions"): [source(rows=[0.5, 0.2])],
    ("Source", "_fields_fit_the_format"): [
        source(compression="gzip"), source(format="csv", types={"a": "list<int>"}),
        source(format="delta", files=["a", "b"]), source(version=3), source(partition={"day": "1"}),
        source(format="protobuf", message="m"), source(format="protobuf", descriptors="d"),
    ],
    ("Source", "_columns_are_named"): [source(format="csv", header=False)],
    ("StreamSource", "_rows_are_fractions"): [stream({"rows": [0.5, 0.2]}, TOPIC | {"rows": [0.5, 0.2]})],
    ("StreamSource", "_fields_fit_the_format"): [
        stream({"compression": "gzip"}), stream({"version": 3}), stream(TOPIC | {"format": "protobuf", "message": "m"}),
    ],
    ("StreamSource", "_columns_are_named"): [stream({"format": "csv", "header": False})],
    ("StreamSource", "_files_or_topic"): [
        stream({"files": []}), stream(TOPIC | {"files": ["a"]}),
        stream(TOPIC | {"kafka": "k", "servers": "a:1"}),
        stream({"kafka": "k", "servers": "a:1", "jetstream": "", "files": ["a"]}),
    ],
    ("StreamSource", "_fields_of_topics"): [
        stream(TOPIC | {"done": "x"}), stream(TOPIC | {"partition": {"a": "b"}, "format": "jsonl"}),
        stream(TOPIC | {"header": False}), stream(TOPIC | {"columns": ["a"]}), stream(TOPIC | {"may_be_empty": True}),
        stream(TOPIC | {"format": "csv"}), stream(TOPIC | {"types": {}}), stream(TOPIC | {"compression": "gzip"}),
        stream({"kafka": "k", "jetstream": ""}), stream(TOPIC | {"options": {"client.id": "a"}}),
        stream(TOPIC | {"start": "group"}), stream({"servers": "a:1"}), stream({"options": {"client.id": "a"}}),
        stream({"group": "g"}), stream({"start": "latest"}),
    ],
    ("StreamSource", "_ends_after_it_starts"): [stream({"start": 10, "end": 5})],
    ("StreamSource", "_whole_files"): [stream({"rows": [0, 0.5]})],
    ("Stream", "_weights_of_all_or_none"): [stream({"weight": 1}, {})],
    ("Stream", "_windows_are_told_apart"): [stream({}, window=90), stream({}, window=59)],
    ("TrainingJob", "_what_is_fresh_is_served"): [
        job(freshness={}, export=None), job(freshness={}, export={"serve": False}),
    ],
    ("TrainingJob", "_one_dataset"): [job(dataset="also"), {"name": "small", "model": {"zoo": "dlrm"}}],
    ("TrainingJob", "_servers"): [role("ps", replicas=0, min=0), role("ps", min=0, max=0)],
    ("TrainingJob", "_workers"): [role(min=0, max=0)],
    ("TrainingJob", "_model_has_a_name"): [job(export={"namespace": "a" * 60})],
    ("TrainingJob", "_streams_are_trained_once_and_as_they_come"): [
        stream(TOPIC | {"end": None}, training={"epochs": 2}), stream(TOPIC, training={"epochs": 2}),
        stream({}, training={"sync": {"batches_per_step": 2}}),
    ],
    ("TrainingJob", "_scaling_follows_topics"): [job(scaling=SCALING)],
    ("TrainingJob", "_evaluation_ends"): [
        stream({}, evaluation={"rows": [0.5, 1]}),
        job(evaluation={"data": stream({"end": None})["data"]}), job(evaluation={"data": stream(TOPIC)["data"]}),
    ],
    ("TrainingJob", "_stopping_needs_evaluation"): [job(training={"early_stopping": {}})],
    ("quantity", "cpu"): [role(cpu="many"), role(cpu=0), role(cpu="0m")],
    ("quantity", "memory"): [role(memory="2 cups"), role("data", buffer="1Ki")],
}
"""Jobs with one thing wrong, by the rule that says so."""
CASES = [(name, case) for name, cases in WRONG.items() for case in cases]


def test_every_rule_in_cel_has_a_case() -> None:
    said = {
        (kind.__name__, name) for kind, table in rules.RULES.items() for name, item in table.items()
        if not isinstance(item, rules.Mesh)
    }
    said |= {(kind.__name__, name) for kind, name in rules.FIELDS}
    said |= {("quantity", kind) for kind in AMOUNTS} | {("TrainingJob", "_model_has_a_name")}
    assert said == set(WRONG)


def faults(document: dict[str, Any]) -> dict[str, str]:
    """What the command line says."""
    with pytest.raises(InvalidArgument) as caught:
        TrainingJob.parse(document)
    return {item.path: item.reason for item in caught.value.violations}


def refusals(cluster: KubeCluster, documents: list[dict[str, Any]]) -> list[dict[str, str]]:
    """What the API server says to each, by path."""

    async def ask() -> list[dict[str, str]]:
        client = await connect(Access(cluster.kubeconfig), field_manager="test", calls_per_s=1000, burst=1000)
        try:
            return [await refused(client, thing_of(document)) for document in documents]
        finally:
            await client.close()

    async def refused(client: Any, thing: dict[str, Any]) -> dict[str, str]:
        try:
            await client.create(JOBS, thing, namespace="default", dry_run=True)
        except InvalidArgument as error:
            return {item.path: item.reason for item in error.violations}
        return {}

    return asyncio.run(ask())


def as_said(path: str) -> str:
    """The API server's path as the command line writes it."""
    return path.removeprefix("spec.").replace("[", ".").replace("]", "").replace("metadata.name", "name")


def test_what_is_wrong_is_refused_at_the_same_field_in_the_same_words(cluster: KubeCluster) -> None:
    answers = refusals(cluster, [case for _, case in CASES])
    wrong = []
    for (name, case), answer in zip(CASES, answers, strict=True):
        expected = faults(case)
        said = {as_said(path): message.partition(": ")[2] or message for path, message in answer.items()}
        matched = [
            path for path, reason in expected.items()
            if any(path == at or path.startswith(f"{at}.") for at, text in said.items() if reason in text)
        ]
        if set(matched) != set(expected):
            wrong.append(f"{name}:\n    command line: {expected}\n    API server:   {answer}")
    assert not wrong, "\n".join(wrong)


def test_every_kind_is_taken_whole(cluster: KubeCluster) -> None:
    found = cluster.get("crd")["items"]
    by_name = {item["metadata"]["name"]: item for item in found}
    for kind in definitions.KINDS:
        told = by_name[f"{kind.plural}.recmesh.dev"]["status"]["conditions"]
        conditions = {item["type"]: item["status"] for item in told}
        assert conditions["Established"] == "True" and conditions["NamesAccepted"] == "True"
        assert conditions.get("NonStructuralSchema", "False") == "False"


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_examples_are_taken_and_mean_the_same_with_the_servers_defaults(cluster: KubeCluster, file: Path) -> None:
    wanted = TrainingJob.parse(yaml.safe_load(file.read_text()))
    thing = objects.training_job(wanted, namespace="default")
    given = json.loads(cluster.kubectl("create", "--dry-run=server", "-f", "-", "-o", "json", body=thing))
    assert TrainingJob.parse(objects.job_document(given)) == wanted.model_copy(update={"namespace": "default"})


def test_defaults_are_those_of_the_specification(cluster: KubeCluster) -> None:
    given = json.loads(cluster.kubectl("create", "--dry-run=server", "-f", "-", "-o", "json", body=thing_of(
        job(training={"optimizer": {"kind": "sgd"}}, roles={"evaluator": {"cpu": 1}}, evaluation={"rows": [0.5, 1.0]})
    )))
    filled = json.loads(TrainingJob.parse(objects.job_document(given)).model_dump_json(exclude_none=True))
    filled = {name: value for name, value in filled.items() if name not in ("api_version", "name", "namespace")}
    assert given["spec"] == filled


def test_fields_that_there_are_not_are_refused(cluster: KubeCluster) -> None:
    said = cluster.kubectl("apply", "--dry-run=server", "-f", "-", body=thing_of(job(trainng={})), fails=True)
    assert 'unknown field "spec.trainng"' in said


def test_a_dataset_is_taken_with_its_defaults(cluster: KubeCluster) -> None:
    spec = {"source": {"files": ["a.parquet"]}, "features": [{"name": "user"}]}
    thing = {"apiVersion": objects.API_VERSION, "kind": "TrainingDataset", "metadata": {"name": "clicks"}, "spec": spec}
    given = json.loads(cluster.kubectl("create", "--dry-run=server", "-f", "-", "-o", "json", body=thing))
    assert DatasetSpec.parse(given["spec"]) == DatasetSpec.parse(spec)


def test_a_job_is_scaled_and_shown_and_keeps_what_it_was_accepted_with(cluster: KubeCluster) -> None:
    thing = thing_of(job(priority=5) | {"name": "shown"})
    cluster.kubectl("apply", "--server-side", "-f", "-", body=thing)
    cluster.kubectl("scale", "tj/shown", "--replicas=3")
    assert cluster.get("tj", "shown")["spec"]["roles"]["worker"]["replicas"] == 3
    said = cluster.kubectl("scale", "tj/shown", "--replicas=9", fails=True)
    assert "replicas 9 is above max 8" in said

    changed = copy.deepcopy(thing)
    changed["spec"]["training"] = {"epochs": 2}         # no job was made of it yet
    cluster.kubectl("apply", "--server-side", "-f", "-", body=changed)
    status = {"job_id": "shown", "phase": "Running", "workers": 2, "ready_workers": "2/3", "ready_ps": "1/1",
              "progress": "42%", "eta": "3m20s", "throughput": "1,200/s", "lag": "12s",
              "selector": "recmesh.dev/job=shown"}
    cluster.kubectl("patch", "tj/shown", "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
    said = cluster.kubectl("apply", "--server-side", "-f", "-", body=thing, fails=True)
    assert "spec.training: Invalid value" in said and definitions.FIXED_MESSAGE in said
    path = f"/apis/{objects.API_VERSION}/namespaces/default/trainingjobs/shown/scale"
    scaled = json.loads(cluster.kubectl("get", "--raw", path))
    assert scaled["status"] == {"replicas": 2, "selector": "recmesh.dev/job=shown"}

    head, line = cluster.kubectl("get", "tj", "shown").splitlines()
    assert head.split() == ["NAME", "PHASE", "WORKERS", "PS", "PROGRESS", "ETA", "AGE"]
    assert line.split()[:6] == ["shown", "Running", "2/3", "1/1", "42%", "3m20s"]
    wide = cluster.kubectl("get", "tj", "shown", "-o", "wide").splitlines()
    assert wide[0].split()[6:9] == ["PRIORITY", "THROUGHPUT", "LAG"] and wide[1].split()[6:9] == ["5", "1,200/s", "12s"]
    assert "trainingjob.recmesh.dev/shown" in cluster.kubectl("get", "all", "-o", "name")
    cluster.kubectl("delete", "tj", "shown")
