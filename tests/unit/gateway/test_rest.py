"""The REST API: problems, access, limits, and what it hands on."""

import base64
import re
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.runtime.ops.reference import type_of
from recmesh.runtime.room import Room
from services.gateway.app.ports import Document
from services.gateway.rest.guard import BodyLimits
from tests.support.gateway import FakePeer, gateway, http, unknown_job
from tests.support.openapi import document, text
from tests.unit.gateway.test_code_store import archive, file

pytestmark = pytest.mark.asyncio

YAML = {"content-type": "application/yaml"}


def problem_of(response: httpx.Response, status: int, reason: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    protocol = response.url.path.startswith("/v2")      # whose clients read `error` of plain JSON
    assert response.headers["content-type"] == ("application/json" if protocol else "application/problem+json")
    body: dict[str, Any] = response.json()
    assert body["reason"] == reason
    assert body["status"] == status
    assert body["request_id"] == response.headers["x-request-id"]
    return body


async def test_unknown_paths_and_methods_are_problems(tmp_path: Path) -> None:
    async with http(gateway(tmp_path)) as client:
        problem_of(await client.get("/v1/nothing"), 404, "NO_ROUTE")
        response = await client.put("/v1/jobs")
        problem_of(response, 405, "METHOD_NOT_ALLOWED")
        assert response.headers["allow"] == "POST"


async def test_a_wrong_query_names_the_field(tmp_path: Path) -> None:
    async with http(gateway(tmp_path)) as client:
        body = problem_of(await client.get("/v1/jobs?limit=0"), 400, "INVALID_REQUEST")
    assert body["violations"][0]["path"] == "query.limit"


async def test_a_peer_s_error_keeps_its_reason_and_violations(tmp_path: Path) -> None:
    wrong = InvalidArgument("wrong", reason="BAD_SPEC", violations=[Violation("roles.ps", "needs one")])
    async with http(gateway(tmp_path), jobs=FakePeer(error=wrong)) as client:
        body = problem_of(await client.post("/v1/jobs", json={"name": "x"}), 400, "BAD_SPEC")
    assert body["violations"] == [{"path": "roles.ps", "reason": "needs one"}]
    assert body["error"] == "wrong\n  roles.ps: needs one"


async def test_a_bug_is_a_problem_that_tells_nothing_of_itself(tmp_path: Path) -> None:
    class Broken(FakePeer):
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("the secret inside")

    async with http(gateway(tmp_path), jobs=Broken()) as client:
        response = await client.get("/v1/jobs")
    body = problem_of(response, 500, "INTERNAL")
    assert "secret" not in response.text
    assert body["request_id"] in body["detail"]


async def test_a_request_id_is_taken_over_unless_it_is_strange(tmp_path: Path) -> None:
    async with http(gateway(tmp_path)) as client:
        kept = await client.get("/v2/health/live", headers={"x-request-id": "abc"})
        made = await client.get("/v2/health/live", headers={"x-request-id": "x" * 500})
    assert kept.headers["x-request-id"] == "abc"
    assert len(made.headers["x-request-id"]) == 32


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/models", "/v2", "/v2/health/live", "/metrics", "/"])
async def test_with_a_key_every_call_needs_it(tmp_path: Path, path: str) -> None:
    async with http(gateway(tmp_path), api_key="key", loopback=False) as client:
        none = await client.get(path)
        wrong = await client.get(path, headers={"authorization": "Bearer kez"})
        scheme = await client.get(path, headers={"authorization": "key"})
        right = await client.get(path, headers={"authorization": "Bearer key"})
        browser = await client.get(path, auth=("anyone", "key"))
    problem_of(none, 401, "NO_CREDENTIAL")
    problem_of(wrong, 401, "WRONG_CREDENTIAL")
    assert scheme.status_code == 401
    assert none.headers["www-authenticate"].startswith("Bearer" if path.startswith("/v") else "Basic")
    assert 401 not in (right.status_code, browser.status_code)


async def test_a_broken_basic_credential_is_refused_not_an_error(tmp_path: Path) -> None:
    async with http(gateway(tmp_path), api_key="key", loopback=False) as client:
        for value in ("%%%", base64.b64encode(b"\xff:\xff").decode()):
            response = await client.get("/v2", headers={"authorization": f"Basic {value}"})
            assert response.status_code == 401


async def test_on_loopback_another_name_is_refused(tmp_path: Path) -> None:
    async with http(gateway(tmp_path)) as client:
        problem_of(await client.get("/v2", headers={"host": "evil.example:8000"}), 403, "WRONG_HOST")
        for host in ("localhost:8000", "127.0.0.1", "[::1]:8000"):
            assert (await client.get("/v2", headers={"host": host})).status_code == 200


async def test_a_write_from_another_site_s_page_is_refused(tmp_path: Path) -> None:
    async with http(gateway(tmp_path)) as client:
        response = await client.post("/v1/jobs/x:stop", headers={"origin": "http://evil.example"})
        problem_of(response, 403, "CROSS_ORIGIN")
        own = await client.post("/v1/jobs/x:stop", headers={"origin": "http://127.0.0.1:8000"})
    assert own.status_code == 200


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_above_the_limit_is_refused(tmp_path: Path, announced: bool) -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b"x" * 1000

    limits = BodyLimits(default=5000, infer=5000, code=5000)
    async with http(gateway(tmp_path), limits=limits) as client:
        for path in ("/v1/jobs", "/v2/models/tiny/infer", "/v1/code"):
            content: Any = b"x" * 10_000 if announced else body()
            problem_of(await client.post(path, content=content), 413, "TOO_LARGE")


@pytest.mark.parametrize(
    ("content", "headers"),
    [
        (b'{"name": "x"}', {}),
        (b'{"name": "x"}', {"content-type": "application/json; charset=utf-8"}),
        (b"name: x", YAML),
    ],
)
async def test_a_job_is_taken_as_json_and_as_yaml(
    tmp_path: Path, content: bytes, headers: dict[str, str]
) -> None:
    jobs = FakePeer()
    async with http(gateway(tmp_path), jobs=jobs) as client:
        response = await client.post("/v1/jobs?dry_run=true", content=content, headers=headers)
        created = await client.post("/v1/jobs", content=content, headers={**headers, "idempotency-key": "k"})
    assert (response.status_code, created.status_code) == (200, 201)
    assert created.headers["location"] == "/v1/jobs/job-1"
    assert [call[1] for call in jobs.calls] == [('{"name":"x"}',)] * 2
    assert [call[2]["dry_run"] for call in jobs.calls] == [True, False]
    assert [call[2]["request_id"] for call in jobs.calls] == ["", "k"]


async def test_a_job_that_has_not_ended_is_deleted_only_by_force(tmp_path: Path) -> None:
    class Jobs(FakePeer):
        phase = "Running"

        async def get(self, job_id: str) -> Document:
            return {"job_id": job_id, "phase": self.phase}

    jobs = Jobs()
    async with http(gateway(tmp_path), jobs=jobs) as client:
        problem_of(await client.delete("/v1/jobs/j"), 409, "JOB_LIVE")
        assert not jobs.calls
        assert (await client.delete("/v1/jobs/j?force=true")).status_code == 204
        jobs.phase = "Failed"
        assert (await client.delete("/v1/jobs/j")).status_code == 204
    assert [call[0] for call in jobs.calls] == ["delete", "delete"]


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b"", {}, 400),
        (b"{", {}, 400),
        (b"a: [", YAML, 400),
        (b"a: !!python/object/apply:os.system [id]", YAML, 400),
        (b"a: 2020-01-01\nb: !!set {x}", YAML, 400),
        (b"a: &a [1]\nb: [" + b"*a, " * 200 + b"]", YAML, 400),
        (b"[" * 5000, YAML, 400),
        (b"name=x", {"content-type": "application/x-www-form-urlencoded"}, 415),
        (b"name: x", {"content-type": "text/plain"}, 415),
    ],
)
async def test_a_body_that_is_no_document_is_refused(
    tmp_path: Path, content: bytes, headers: dict[str, str], status: int
) -> None:
    jobs = FakePeer()
    async with http(gateway(tmp_path), jobs=jobs) as client:
        response = await client.post("/v1/jobs", content=content, headers=headers)
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert jobs.calls == []


async def test_scale_and_stop_hand_on_what_they_were_given(tmp_path: Path) -> None:
    jobs = FakePeer()
    async with http(gateway(tmp_path), jobs=jobs) as client:
        await client.post("/v1/jobs/j:scale", json={"role": "worker", "replicas": 3})
        await client.post("/v1/jobs/j:scale", json={"role": "worker", "replicas": None})
        await client.post("/v1/jobs/j:resize", json={"role": "ps", "cpu": "500m", "memory": "4Gi"})
        await client.post("/v1/jobs/j:stop", json={"reason": "done", "finish": True})
        await client.post("/v1/jobs/j:stop")
        await client.post("/v1/jobs/j:suspend", json={"reason": "room"})
        await client.post("/v1/jobs/j:suspend")
        await client.post("/v1/jobs/j:resume")
        wrong = await client.post("/v1/jobs/j:scale", json={"role": "worker", "replica": 3})
    assert jobs.calls == [
        ("scale", ("j",), {"role": "worker", "replicas": 3}),
        ("scale", ("j",), {"role": "worker", "replicas": None}),
        ("resize", ("j",), {"role": "ps", "cpu": 0.5, "memory_bytes": 4 << 30}),
        ("stop", ("j",), {"reason": "done", "finish": True}),
        ("stop", ("j",), {"reason": "", "finish": False}),
        ("suspend", ("j",), {"reason": "room"}),
        ("suspend", ("j",), {"reason": ""}),
        ("resume", ("j",), {}),
    ]
    assert problem_of(wrong, 400, "INVALID_REQUEST")["violations"][0]["path"] == "replica"


class SomeEvents:
    """Two events, then silence."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def history(self, job_id: str, *, after: int, limit: int) -> list[Document]:
        self.asked.append(after)
        return [{"sequence": 5, "type": "job.submitted", "job": job_id}][:limit]

    async def live(self, job_id: str, *, after: int) -> AsyncGenerator[Document | None, None]:
        self.asked.append(after)
        yield {"sequence": 5, "type": "job.submitted"}
        yield None
        yield {"sequence": 9, "type": "job.scaled"}


async def test_events_are_a_list_or_a_stream_that_resumes(tmp_path: Path) -> None:
    events = SomeEvents()
    async with http(gateway(tmp_path), events=events) as client:
        listed = await client.get("/v1/jobs/j/events?after=3")
        streamed = await client.get(
            "/v1/jobs/j/events", headers={"accept": "text/event-stream", "last-event-id": "4"}
        )
        wrong = await client.get("/v1/jobs/j/events", headers={"last-event-id": "x"})
    assert [item["sequence"] for item in listed.json()["events"]] == [5]
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.text == (
        'retry: 2000\n\nid: 5\nevent: job.submitted\ndata: {"sequence":5,"type":"job.submitted"}\n\n'
        ': alive\n\nid: 9\nevent: job.scaled\ndata: {"sequence":9,"type":"job.scaled"}\n\n'
    )
    assert events.asked == [3, 4]
    problem_of(wrong, 400, "INVALID_REQUEST")


async def test_events_of_an_unknown_job_are_not_found(tmp_path: Path) -> None:
    async with http(gateway(tmp_path), jobs=FakePeer(error=unknown_job())) as client:
        problem_of(await client.get("/v1/jobs/x/events"), 404, "UNKNOWN_JOB")


async def test_code_is_uploaded_once(tmp_path: Path) -> None:
    content = archive(file("main.py"))
    async with http(gateway(tmp_path)) as client:
        first = await client.post("/v1/code", content=content)
        second = await client.post("/v1/code", content=content)
        unsafe = await client.post("/v1/code", content=archive(file("../main.py")))
        other = await client.post("/v1/code", content=content, headers={"x-content-sha256": "0" * 64})
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["digest"] == second.json()["digest"] == f"sha256:{first.json()['sha256']}"
    problem_of(unsafe, 400, "UNSAFE_ARCHIVE")
    problem_of(other, 400, "DIGEST_MISMATCH")


async def test_datasets_are_handed_on(tmp_path: Path) -> None:
    data = FakePeer()
    async with http(gateway(tmp_path), data=data) as client:
        await client.post("/v1/datasets", json={"name": "d", "dataset": {"label": "y"}})
        await client.post("/v1/datasets:inspect", content=b"label: y", headers=YAML)
        wrong = await client.post("/v1/datasets", json={"name": "d", "spec": {}})
    assert data.calls == [("register", ("d", '{"label":"y"}'), {}), ("inspect", ('{"label":"y"}',), {})]
    violations = problem_of(wrong, 400, "INVALID_REQUEST")["violations"]
    assert [item["path"] for item in violations] == ["dataset", "spec"]


class Users(FakePeer):
    """Jobs, of which some train on the dataset."""

    def __init__(self, *jobs: str) -> None:
        super().__init__()
        self.jobs = list(jobs)

    async def using(self, dataset: str) -> list[str]:
        return self.jobs if dataset == "d" else []


async def test_a_dataset_that_jobs_use_is_removed_only_by_force(tmp_path: Path) -> None:
    class Data(FakePeer):
        async def remove(self, name: str) -> bool:
            self.calls.append(("remove", (name,), {}))
            return name == "d"

    data = Data()
    async with http(gateway(tmp_path), data=data, jobs=Users("a", "b")) as client:
        used = await client.delete("/v1/datasets/d")
        assert "a, b" in problem_of(used, 409, "IN_USE")["detail"] and data.calls == []
        assert (await client.delete("/v1/datasets/d?force=true")).status_code == 204
        problem_of(await client.delete("/v1/datasets/e"), 404, "UNKNOWN_DATASET")
    assert [args for _, args, _ in data.calls] == [("d",), ("e",)]


async def test_models_are_registered_and_seen(tmp_path: Path) -> None:
    made = gateway(tmp_path)
    uri = made.folder()
    async with http(made) as client:
        registered = await client.post("/v1/models", json={"name": "tiny", "uri": uri, "framework": "torch"})
        await made.settled()
        one = await client.get("/v1/models/tiny")
        every = await client.get("/v1/models")
        outside = await client.post("/v1/models", json={"name": "t", "uri": "../x", "framework": "torch"})
        deleted = await client.delete("/v1/models/tiny")
        gone = await client.get("/v1/models/tiny")
    assert (registered.status_code, registered.json()["state"]) == (201, "loading")
    assert (one.json()["state"], one.json()["versions"][0]["version"]) == ("ready", "1")
    assert [item["name"] for item in every.json()["models"]] == ["tiny"]
    problem_of(outside, 400, "OUTSIDE_STORAGE")
    assert deleted.status_code == 204
    problem_of(gone, 404, "UNKNOWN_MODEL")


async def test_the_openapi_document_describes_every_operation(tmp_path: Path) -> None:
    async with http(gateway(tmp_path)) as client:
        document = (await client.get("/openapi.json")).json()
    paths = document["paths"]
    operations = [operation for path in paths.values() for operation in path.values()]
    ids = [operation["operationId"] for operation in operations]
    assert len(ids) == len(set(ids)) > 30
    for operation in operations:
        assert operation["summary"] and operation["description"], operation["operationId"]
        assert "422" not in operation["responses"]
    for path, kinds in paths.items():
        kind = "application/json" if path.startswith("/v2") else "application/problem+json"
        assert all(kind in operation["responses"]["401"]["content"] for operation in kinds.values())


async def test_the_documentation_shows_every_operation_and_loads_nothing_from_outside(tmp_path: Path) -> None:
    async with http(gateway(tmp_path)) as client:
        document = (await client.get("/openapi.json")).json()
        answer = await client.get("/docs")
    page = answer.text
    assert answer.status_code == 200 and "default-src 'none'" in answer.headers["content-security-policy"]
    assert all(f"<code>{path}</code>" in page for path in document["paths"])
    assert all(f'id="schema-{name}"' in page for name in document["components"]["schemas"])
    assert not re.search(r"""(src|href)=["']?(https?:)?//|<script|@import""", page)


@pytest.mark.parametrize(("schema", "text"), [
    ({"$ref": "#/components/schemas/Job"}, "Job"),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "integer | null"),
    ({"type": "array", "items": {"type": "string"}}, "[string]"), ({"enum": ["a", "b"]}, '"a" | "b"'),
    ({"type": "object", "additionalProperties": {"type": "number"}}, "{string: number}"), ({}, "any"),
])
async def test_a_schema_is_told_in_few_words(schema: dict[str, Any], text: str) -> None:
    assert type_of(schema) == text


async def test_on_a_full_disk_nothing_begins_and_what_runs_can_be_stopped(tmp_path: Path) -> None:
    async with http(gateway(tmp_path), room=Room(tmp_path, reserve_bytes=1 << 60)) as client:
        for path in ("/v1/jobs", "/v1/jobs/x:scale"):
            problem_of(await client.post(path, json={}), 429, "DATA_FOLDER_FULL")
        assert (await client.post("/v1/jobs/x:stop")).status_code == 200
        assert (await client.delete("/v1/jobs/x?force=true")).status_code < 300


async def test_the_committed_description_is_what_the_gateway_answers(tmp_path: Path) -> None:
    committed = (Path(__file__).parents[3] / "docs" / "openapi.json").read_text()
    assert committed == text(await document(tmp_path)), "run: python -m tests.support.openapi docs/openapi.json"
