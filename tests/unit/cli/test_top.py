"""`recmesh top`: jobs with lag, roles, machines, models; as tables and as one document."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from recmesh.cli import top_verbs
from recmesh.cli.output import Shape
from recmesh.client.views import Job, JobPage, Progress, Role, Served, ServedVersion, StepTimes
from recmesh.runtime.errors import MeshError, NotFound, PermissionDenied, Unavailable

GIB = 1 << 30


def role(name: str, index: int, **more: Any) -> Role:
    given = {"state": "running", "handle": f"{name}{index}", "node": "n1", "cpu_limit": 1.0, "memory_bytes": GIB,
             "memory_limit_bytes": 2 * GIB, "cpu_s": 10.0}  # fmt: skip
    return Role(role=name, index=index, **{**given, **more})


ADS = Job(
    job_id="ads-1", name="ads", phase="Running",
    progress=Progress(samples=50, total=0, samples_per_s=200, partitions=2, lag_messages=1234, lag_s=42),
    roles=[
        role("worker", 0, step=StepTimes(data_s=0.001, pull_s=0.002, compute_s=0.003, push_s=0.004, total_s=0.01)),
        role("worker", 1, node="n2", cpu_s=4.0), role("ps", 0, rows=5000), role("ps", 1, state="exited"),
    ],
)  # fmt: skip
OLD = Job(job_id="old-1", name="old", phase="Succeeded", roles=[role("worker", 0, handle="gone")])
MODEL = Served(
    name="flights", requests_per_s=120.5,
    versions=[
        ServedVersion(version="1", state="ready", is_ready=True, requests=900, p50_s=0.002, p99_s=0.02),
        ServedVersion(version="2", state="failed", reason="no file"),
        ServedVersion(version="10", state="ready", is_ready=True, requests=10, errors=1, p99_s=0.03),
    ],
)


class FakeMesh:
    """Two jobs and a model; cores are used between looks."""

    def __init__(self) -> None:
        self.looks = 0
        self.models: list[Served] | MeshError = [MODEL]

    def __enter__(self) -> "FakeMesh":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def jobs(self, *, limit: int) -> JobPage:
        self.looks += 1
        return JobPage(jobs=[ADS, OLD][:limit])

    def job(self, job_id: str) -> Job:
        roles = [each.model_copy(update={"cpu_s": each.cpu_s + 3.0 * self.looks}) for each in ADS.roles]
        return ADS.model_copy(update={"roles": roles})

    def serving(self) -> list[Served]:
        if isinstance(self.models, MeshError):
            raise self.models
        return self.models


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMesh]:
    fake = FakeMesh()
    monkeypatch.setattr(top_verbs, "connect", lambda home: fake)
    monkeypatch.setattr("recmesh.cli.top_verbs.time.sleep", lambda seconds: None)
    yield fake


def tables(text: str) -> dict[str, list[list[str]]]:
    """Rows of cells by the table's title; that of jobs has none."""
    found: dict[str, list[list[str]]] = {"": []}
    title = ""
    for line in text.splitlines():
        if line in ("Roles", "Nodes", "Models"):
            title, found[line] = line, []
        elif line:
            found[title].append([cell.strip() for cell in line.split("  ") if cell.strip()])
    return found


def test_a_pipe_gets_jobs_roles_machines_and_models(mesh: FakeMesh, capsys: pytest.CaptureFixture[str]) -> None:
    top_verbs.top(interval=0.2)
    shown = tables(capsys.readouterr().out)
    assert "1,234, 42s" in shown[""][1], "the lag of a job on topics"
    workers = [row for row in shown["Roles"] if row[1].startswith("worker")]
    assert [row[2] for row in workers] == ["n1", "n2"]
    assert workers[0][3:5] == ["running", "worker0"]
    assert workers[0][5:] == ["1.0 ms", "2.0 ms", "3.0 ms", "4.0 ms", "of 1", "1.0 GiB of 2.0 GiB"]
    assert [row[:3] for row in shown["Nodes"][1:]] == [["n1", "1 ps, 1 worker", "1"], ["n2", "1 worker", "1"]]
    assert [row[:2] for row in shown["Models"][1:]] == [["flights", "10"], ["flights", "1"], ["flights", "2"]]
    assert shown["Models"][1][3] == "120" and "30 ms" in shown["Models"][1]


@pytest.mark.parametrize(("shape", "parse"), [(Shape.JSON, json.loads), (Shape.YAML, yaml.safe_load)])
def test_the_document_has_the_same_facts(
    mesh: FakeMesh, shape: Shape, parse: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    top_verbs.top(interval=0.2, shape=shape)
    found = parse(capsys.readouterr().out)
    assert sorted(found) == ["at", "jobs", "models", "nodes"]
    assert [job["name"] for job in found["jobs"]] == ["ads", "old"]
    assert found["jobs"][0]["progress"]["lag_messages"] == 1234 and found["jobs"][0]["roles"][1]["node"] == "n2"
    assert found["nodes"][0]["processes"] == {"worker": 1, "ps": 1}
    assert found["models"][0]["requests_per_s"] == 120.5
    assert [each["p99_s"] for each in found["models"][0]["versions"]] == [0.02, 0.0, 0.03]


def test_cores_in_use_are_what_was_spent_between_two_looks() -> None:
    spent = [each.model_copy(update={"cpu_s": each.cpu_s + 4.0}) for each in ADS.roles]
    later = ADS.model_copy(update={"roles": spent})
    before = top_verbs.Look(100.0, [ADS], [], [])
    first = top_verbs.nodes([ADS, OLD], at=100.0)
    assert [node.cpu_used for node in first] == [None, None]
    n1, n2 = top_verbs.nodes([later, OLD], at=108.0, before=before)
    assert (n1.node, n1.cpu_used, n1.cpu_limit, n1.memory_bytes) == ("n1", 1.0, 2.0, 2 * GIB)
    assert (n2.node, n2.cpu_used) == ("n2", 0.5)


def test_a_process_that_has_not_said_where_it_runs_is_counted_apart() -> None:
    unknown = ADS.model_copy(update={"roles": [role("worker", 0, node="")]})
    assert [node.node for node in top_verbs.nodes([unknown], at=1.0)] == ["?"]


@pytest.mark.parametrize("error", [
    NotFound("there is no /v1/serving"), PermissionDenied("planner has no scope 'infer'", reason="NO_SCOPE"),
])  # fmt: skip
def test_jobs_are_shown_without_models_by_an_older_gateway_and_to_a_key_for_jobs_alone(
    mesh: FakeMesh, error: MeshError, capsys: pytest.CaptureFixture[str]
) -> None:
    mesh.models = error
    top_verbs.top(interval=0.2)
    shown = capsys.readouterr().out
    assert "Models" not in shown and "ads" in shown


def test_what_else_is_wrong_with_models_is_told(mesh: FakeMesh) -> None:
    mesh.models = Unavailable("the gateway is away")
    with pytest.raises(Unavailable):
        top_verbs.top(interval=0.2)
