"""The client against answers as gateway gives them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from recmesh.client import Client, Event
from recmesh.client.rest import ends_job, server_sent
from recmesh.runtime.errors import (
    AlreadyExists,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    MeshError,
    NotFound,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
    Violation,
)

Handler = Callable[[httpx.Request], httpx.Response]


def client(handler: Handler, *, timeout_s: float = 5.0, api_key: str = "") -> Client:
    transport = httpx.MockTransport(handler)
    return Client("http://mesh", transport=transport, timeout_s=timeout_s, api_key=api_key)


def problem(status: int, reason: str, detail: str = "what is wrong", **more: Any) -> httpx.Response:
    body = {"type": f"urn:recmesh:problem:{reason}", "title": "T", "status": status, "detail": detail,
            "reason": reason, "violations": [], **more}  # fmt: skip
    return httpx.Response(status, json=body)


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (400, "INVALID_SPEC", InvalidArgument),
        (401, "Unauthenticated", Unauthenticated),
        (404, "NO_JOB", NotFound),
        (409, "AlreadyExists", AlreadyExists),
        (409, "JOB_IS_OVER", FailedPrecondition),
        (413, "TOO_LARGE", ResourceExhausted),
        (429, "RATE", ResourceExhausted),
        (500, "INTERNAL", Internal),
        (504, "DeadlineExceeded", DeadlineExceeded),
    ],
)
def test_problem_details_become_the_error_they_were(status: int, reason: str, kind: type[MeshError]) -> None:
    with client(lambda _: problem(status, reason)) as mesh, pytest.raises(MeshError) as caught:
        mesh.stop("j")
    assert type(caught.value) is kind and caught.value.message == "what is wrong"
    assert caught.value.reason == reason


def test_violations_come_back() -> None:
    items = [{"path": "training.epochs", "reason": "must be positive"}]
    with client(lambda _: problem(400, "X", violations=items)) as mesh, pytest.raises(MeshError) as caught:
        mesh.submit({"name": "x"})
    assert caught.value.violations == (Violation("training.epochs", "must be positive"),)


def test_an_answer_that_is_no_problem_document_is_still_one_clear_error() -> None:
    answer = httpx.Response(500, text="<html>oops")
    with (
        client(lambda _: answer) as mesh,
        pytest.raises(Internal, match="POST /v1/jobs/j:stop: 500 <html>oops"),
    ):
        mesh.stop("j")


def test_a_repeated_submit_carries_the_same_request_id() -> None:
    keys: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["Idempotency-Key"])
        return problem(503, "NOT_READY") if len(keys) < 3 else httpx.Response(201, json={"job_id": "j"})

    with client(handler) as mesh:
        assert mesh.submit({"name": "x"}).job_id == "j"
    assert len(keys) == 3 and len(set(keys)) == 1


def test_what_may_not_be_repeated_is_sent_once() -> None:
    calls: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        calls.append(request.method)
        return problem(503, "NOT_READY")

    with client(handler) as mesh, pytest.raises(Unavailable):
        mesh.delete("j")
    assert calls == ["DELETE"]


def test_a_mesh_that_cannot_be_reached_is_unavailable_within_the_deadline() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with (
        client(handler, timeout_s=0.3) as mesh,
        pytest.raises(Unavailable, match="http://mesh cannot be reached"),
    ):
        mesh.jobs()


def test_a_service_that_gateway_says_is_away_is_named_at_once() -> None:
    calls: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        calls.append(request.url.path)
        return problem(503, "SERVICE_AWAY", "forecaster at x does not run")

    with client(handler) as mesh, pytest.raises(Unavailable, match="forecaster at x"):
        mesh.forecast("topic/flights")
    assert len(calls) == 1


def test_where_tries_end_without_an_answer_the_one_before_is_told() -> None:
    answers = iter([problem(503, "UNREACHABLE", "jobmaster at x cannot be reached")])

    def handler(request: httpx.Request) -> httpx.Response:
        for answer in answers:
            return answer
        raise httpx.ReadTimeout("no time left", request=request)

    with client(handler) as mesh, pytest.raises(Unavailable, match="jobmaster at x"):
        mesh.job("j")


def test_the_api_key_goes_along() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        assert request.headers["Authorization"] == "Bearer k3y"
        return httpx.Response(200, json={"jobs": []})

    with client(handler, api_key="k3y") as mesh:
        assert mesh.jobs().jobs == []


def test_code_is_packed_and_uploaded_before_the_job(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def main(job): ...")
    sent: list[Any] = []

    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/code":
            sent.append(request.content[:2])
            return httpx.Response(201, json={"digest": "sha256:abc"})
        sent.append(json.loads(request.content)["model"]["code"])
        return httpx.Response(201, json={"job_id": "j"})

    spec = {"name": "x", "model": {"entrypoint": "train:main", "code": str(tmp_path)}}
    with client(handler) as mesh:
        mesh.submit(spec)
    assert sent == [b"\x1f\x8b", "sha256:abc"]
    assert spec["model"]["code"] == str(tmp_path), "the caller's own specification stays as it was"  # type: ignore[index]  # plain data


def test_nulls_and_unknown_fields_are_read_as_not_known() -> None:
    body = {"job_id": "j", "progress": None, "metrics": {"auc": None, "loss": 0.5}, "a_new_field": 1,
            "roles": [{"role": "ps", "step": None}]}  # fmt: skip
    with client(lambda _: httpx.Response(200, json=body)) as mesh:
        job = mesh.job("j")
    assert job.progress.samples == 0 and job.metrics == {"loss": 0.5} and job.roles[0].step is None


def test_a_job_is_found_by_its_name_when_there_is_no_such_id() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/jobs/flights":
            return problem(404, "NO_JOB")
        if "page_token" in request.url.params:
            return httpx.Response(200, json={"jobs": [{"job_id": "flights-2", "name": "flights"}]})
        jobs = [{"job_id": "other-1", "name": "other"}]
        return httpx.Response(200, json={"jobs": jobs, "next_page_token": "t"})

    with client(handler) as mesh:
        assert mesh.find_job("flights") == "flights-2"


def test_a_name_that_no_job_has_is_not_found() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        return (
            problem(404, "NO_JOB")
            if request.url.path == "/v1/jobs/x"
            else httpx.Response(200, json={"jobs": []})
        )

    with client(handler) as mesh, pytest.raises(NotFound):
        mesh.find_job("x")


def sse(*events: dict[str, Any]) -> str:
    return "retry: 2000\n\n: alive\n\n" + "".join(
        f"id: {event['sequence']}\nevent: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events
    )


def moved(sequence: int, to_phase: str) -> dict[str, Any]:
    return {"sequence": sequence, "type": "job.transitioned", "data": {"to_phase": to_phase}}


def test_following_goes_on_after_an_interruption_where_it_stopped() -> None:
    asked: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/jobs/j":
            return httpx.Response(200, json={"job_id": "j", "phase": "Running"})
        asked.append(request.headers.get("Last-Event-ID", ""))
        events = [moved(4, "Starting"), moved(7, "Running")] if len(asked) == 1 else [moved(9, "Succeeded")]
        return httpx.Response(200, text=sse(*events), headers={"Content-Type": "text/event-stream"})

    with client(handler) as mesh:
        assert [event.sequence for event in mesh.follow("j")] == [4, 7, 9]
    assert asked == ["", "7"]


def test_an_unfinished_event_of_a_broken_stream_is_left_out() -> None:
    lines: Iterator[str] = iter(['data: {"a": 1}', "", 'data: {"b":'])
    assert list(server_sent(lines)) == [{"a": 1}]


def test_only_a_final_phase_ends_a_job() -> None:
    assert ends_job(Event.model_validate(moved(1, "Failed")))
    assert not ends_job(Event.model_validate(moved(1, "Recovering")))
    assert not ends_job(Event(type="job.progressed", data={"to_phase": "Failed"}))


def test_a_mesh_is_found_by_its_folder_and_by_its_address(tmp_path: Path) -> None:
    gateway = {"state": "ready", "addresses": {"http": "http://127.0.0.1:1"}}
    (tmp_path / "mesh.json").write_text(json.dumps({"components": {"gateway": gateway}}))
    assert Client.find(home=tmp_path, env={}).url == "http://127.0.0.1:1"
    assert Client.find(env={"RECMESH_HOME": str(tmp_path)}).url == "http://127.0.0.1:1"
    assert Client.find(env={"RECMESH_URL": "http://there:1/"}).url == "http://there:1"


def test_a_folder_without_a_mesh_and_a_stopped_mesh_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"there is no mesh.*recmesh up"):
        Client.find(home=tmp_path, env={})
    gateway = {"state": "stopped", "addresses": {"http": "http://127.0.0.1:1"}}
    (tmp_path / "mesh.json").write_text(json.dumps({"components": {"gateway": gateway}}))
    with pytest.raises(Unavailable, match="is stopped"):
        Client.find(home=tmp_path, env={})


def test_following_an_ended_job_lists_its_events_and_ends() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/jobs/j":
            return httpx.Response(200, json={"job_id": "j", "phase": "Failed"})
        assert "text/event-stream" not in request.headers["accept"]
        return httpx.Response(200, json={"events": [moved(3, "Starting"), moved(5, "Failed")]})

    with client(handler) as mesh:
        assert [event.sequence for event in mesh.follow("j")] == [3, 5]


def test_a_job_is_suspended_and_resumed() -> None:
    seen: list[tuple[str, bytes]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append((request.url.path, request.content))
        return httpx.Response(200, json={"job_id": "j", "name": "ads", "phase": "Running", "snapshot": 3})

    with client(answer) as mesh:
        assert mesh.suspend_job("j", reason="room").name == "ads"
        assert mesh.resume_job("j").snapshot == 3
    assert [path for path, _ in seen] == ["/v1/jobs/j:suspend", "/v1/jobs/j:resume"]
    assert b'"reason":"room"' in seen[0][1].replace(b" ", b"")
