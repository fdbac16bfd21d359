"""Who did what: each change by REST is told before it is answered; reading and traffic are not."""

from pathlib import Path
from typing import Any

import pytest

from recmesh.runtime.errors import InvalidArgument, Unavailable
from recmesh.runtime.events import access
from services.gateway.app.access import Access
from services.gateway.app.audit import Audit
from services.gateway.domain.audit import UNKNOWN, Act, Entry, act_of
from services.gateway.store.credentials import Credentials, Sources
from tests.support.gateway import FakeClock, FakePeer, Gateway, JobsInNamespaces, gateway, http, unknown_job
from tests.unit.gateway.test_access import bearer, keys_file

INPUTS = [
    {"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]},
    {"name": "id", "datatype": "INT64", "shape": [1], "data": [2]},
]


def told(made: Gateway) -> list[access.AuditRecorded]:
    return [event.data for event in made.facts.audit]


@pytest.mark.parametrize(("method", "path", "act"), [
    ("POST", "/v1/jobs", Act("submit", "job")), ("POST", "/v1/jobs/a:scale", Act("scale", "job", "a")),
    ("POST", "/v1/jobs/a:stop", Act("stop", "job", "a")), ("DELETE", "/v1/jobs/a", Act("delete", "job", "a")),
    ("POST", "/v1/models", Act("register", "model")), ("DELETE", "/v1/models/m", Act("unregister", "model", "m")),
    ("POST", "/v1/models/m:load", Act("load", "model", "m")),
    ("PUT", "/v1/models/m/traffic", Act("route", "model", "m")),
    ("POST", "/v1/models/m/rollback", Act("rollback", "model", "m")),
    ("POST", "/v2/repository/models/m/unload", Act("unload", "model", "m")),
    ("POST", "/v1/code", Act("upload", "code")), ("POST", "/v1/datasets", Act("register", "dataset")),
    ("POST", "/v1/webhooks/w:rotate", Act("rotate", "webhook", "w")),
    ("PATCH", "/v1/jobs/a/later", Act("patch", "job", "a/later")),
    ("GET", "/v1/jobs", None), ("GET", "/v1/models/m/traffic", None), ("POST", "/v2/models/m/infer", None),
    ("POST", "/v1/labels", None), ("POST", "/v1/rates/x", None), ("POST", "/v1/datasets:inspect", None),
    ("POST", "/v2/repository/index", None), ("GET", "/", None),
])
def test_changes_are_told_apart_from_the_rest(method: str, path: str, act: Act | None) -> None:
    assert act_of(method, path) == act
    if path == "/v1/jobs":
        assert act_of(method, path, dry_run=True) is None


@pytest.mark.asyncio
async def test_each_change_by_rest_is_told_with_actor_object_outcome_and_request_id(tmp_path: Path) -> None:
    made = gateway(tmp_path)
    await made.models.start()
    allowed = Access(Credentials(Sources("root-key", keys_file=keys_file(tmp_path))), clock=FakeClock())
    async with http(made, access=allowed, jobs=JobsInNamespaces(f="ads")) as client:
        await client.post("/v1/jobs", json={"name": "f"}, headers=bearer("root-key") | {"X-Request-Id": "r1"})
        await client.post("/v1/jobs?dry_run=true", json={"name": "f"}, headers=bearer("root-key"))
        await client.post("/v1/jobs/f:scale", json={"role": "worker", "replicas": 2}, headers=bearer("p"))
        await client.post("/v1/jobs/f:scale", json={"role": 7}, headers=bearer("p"))
        await client.post("/v1/jobs/f:stop", headers=bearer("r"))
        await client.delete("/v1/jobs/f?force=true", headers=bearer("wrong"))
        await client.get("/v1/jobs/f", headers=bearer("p"))
        uri = made.folder()
        await client.post(
            "/v1/models", json={"name": "tiny", "uri": uri, "framework": "torch"}, headers=bearer("root-key")
        )
        await made.settled()
        answer = await client.post("/v2/models/tiny/infer", json={"inputs": INPUTS}, headers=bearer("root-key"))
        assert answer.status_code == 200, answer.text
    lines = [
        (each.actor, each.verb, each.kind, each.object, each.outcome, each.reason, each.status) for each in told(made)
    ]
    assert lines == [
        ("the mesh's key", "submit", "job", "job-1", "done", "", 201),
        ("planner", "scale", "job", "f", "done", "", 200),
        ("planner", "scale", "job", "f", "refused", "INVALID_REQUEST", 400),
        ("reader", "stop", "job", "f", "refused", "NO_SCOPE", 403),
        (UNKNOWN, "delete", "job", "f", "refused", "WRONG_CREDENTIAL", 401),
        ("the mesh's key", "register", "model", "tiny", "done", "", 201),
    ]
    assert told(made)[0].request_id == "r1" and all(each.via == "rest" and each.peer for each in told(made))
    assert [event.entity_id for event in made.facts.audit][:2] == ["job-1", "f"], "a job's own events show them"


@pytest.mark.asyncio
@pytest.mark.parametrize(("path", "kind"), [("/v1/jobs", "job"), ("/v1/models", "model"), ("/v1/datasets", "dataset"),
                                            ("/v1/webhooks", "webhook")])  # fmt: skip
@pytest.mark.parametrize(("body", "named"), [
    (b'{"name": "tiny.1", "uri": "models/none/1", "url": "x", "dataset": {}}', "tiny.1"),
    (b'{"name": "tiny", "what": 1}', "tiny"),
    (b'{"name": 7}', ""), (b'["tiny"]', ""), (b'{"name": "ti', ""), (b"", ""),
    (b'{"name": "' + b"n" * 400 + b'"}', "n" * 300),
])  # fmt: skip
async def test_a_refused_creation_names_what_was_asked_for_where_it_could_be_read(
    path: str, kind: str, body: bytes, named: str, tmp_path: Path
) -> None:
    made = gateway(tmp_path)
    refuses = FakePeer(error=InvalidArgument("it is wrong", reason="WRONG"))
    async with http(made, jobs=refuses, data=refuses) as client:
        answer = await client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert 400 <= answer.status_code < 500, answer.text
    assert [(each.kind, each.object, each.outcome) for each in told(made)] == [(kind, named, "refused")]


@pytest.mark.asyncio
async def test_a_job_in_yaml_is_named_and_one_that_fails_behind_is_too(tmp_path: Path) -> None:
    made = gateway(tmp_path)
    async with http(made, jobs=FakePeer(error=Unavailable("away"))) as client:
        await client.post("/v1/jobs", content=b"name: ads", headers={"Content-Type": "application/yaml"})
    assert [(each.object, each.outcome) for each in told(made)] == [("ads", "failed")]


@pytest.mark.asyncio
@pytest.mark.parametrize(("error", "outcome"), [(unknown_job(), "refused"), (Unavailable("away"), "failed")])
async def test_what_a_service_behind_refuses_or_fails_is_told(tmp_path: Path, error: Any, outcome: str) -> None:
    made = gateway(tmp_path)
    async with http(made, jobs=FakePeer(error=error)) as client:
        await client.post("/v1/jobs/x:stop")
    assert [(each.outcome, each.reason) for each in told(made)] == [(outcome, error.reason)]


@pytest.mark.asyncio
async def test_a_change_is_answered_although_it_cannot_be_told_and_is_in_the_log_then(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = gateway(tmp_path)
    made.facts.away = True
    async with http(made) as client:
        assert (await client.post("/v1/jobs/f:stop")).status_code == 200
    assert '"verb":"stop"' in caplog.text and '"object":"f"' in caplog.text


@pytest.mark.asyncio
async def test_strangers_cannot_flood_the_audit(tmp_path: Path) -> None:
    made = gateway(tmp_path)
    audit = Audit(made.facts.publish, clock=made.clock)
    for _ in range(500):
        await audit.record(Entry(Act("stop", "job", "f"), UNKNOWN, "refused", "rest"))
    assert len(made.facts.audit) == 30
    await audit.record(Entry(Act("stop", "job", "f"), "planner", "done", "rest"))
    assert len(made.facts.audit) == 31
