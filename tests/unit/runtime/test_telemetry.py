import json
import logging
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import REGISTRY, CollectorRegistry
from pydantic import SecretStr

from recmesh.runtime.errors import NotFound
from recmesh.runtime.rpc.calls import server_call
from recmesh.runtime.telemetry import Metrics, TraceMiddleware, current_traceparent, extract, span, trace_ids
from recmesh.runtime.telemetry.logs import REDACTED, JsonFormatter, RecentLogs, redact
from tests.support.tracing import tracing

__all__ = ["tracing"]


def record(message: str, **extra: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "recmesh.x", "msg": message, "levelname": "INFO", "levelno": 20})
    made.__dict__.update(extra)
    return made


def test_a_log_line_is_one_json_object_with_its_extras() -> None:
    line = json.loads(JsonFormatter("brain").format(record("hello", job="j-1", count=3)))
    assert (line["service"], line["message"], line["job"], line["count"]) == ("brain", "hello", "j-1", 3)


@pytest.mark.parametrize("text", [
    "Authorization: Bearer abc.def", "nats://user:abc.def@host:4222", "GET /x?token=abc.def&y=1",
    "api_key=abc.def", "password=abc.def",
])
def test_a_secret_inside_text_is_blotted_out(text: str) -> None:
    assert "abc.def" not in redact(text)
    assert REDACTED in redact(text)


def test_secret_values_and_token_like_keys_are_blotted_out_at_any_depth() -> None:
    line = JsonFormatter("x").format(record(
        "m", api_key="abc.def", nested={"nats_token": "abc.def", "rows": [{"password": "abc.def"}]},
        wrapped=SecretStr("abc.def"),
    ))
    assert "abc.def" not in line
    assert json.loads(line)["nested"]["rows"][0]["password"] == REDACTED


def test_a_word_that_only_contains_token_is_shown() -> None:
    assert redact({"tokens_per_s": 12, "tokenizer": "bpe"}) == {"tokens_per_s": 12, "tokenizer": "bpe"}


@pytest.mark.usefixtures("tracing")
def test_lines_inside_a_span_carry_its_trace() -> None:
    with span("work"):
        trace_id, span_id = trace_ids()
        line = json.loads(JsonFormatter("x").format(record("inside")))
        assert (line["trace_id"], line["span_id"]) == (trace_id, span_id)
        carried = {"traceparent": current_traceparent()}
    with span("elsewhere", parent=extract(carried)):
        assert trace_ids()[0] == trace_id


@pytest.mark.asyncio
@pytest.mark.usefixtures("tracing")
async def test_an_http_request_continues_the_callers_trace_and_is_counted_by_its_route() -> None:
    app = FastAPI()
    app.add_middleware(TraceMiddleware, service="tests")

    @app.get("/jobs/{job_id}")
    async def get_job(job_id: str) -> dict[str, str]:
        return {"trace": trace_ids()[0]}

    def counted(route: str, status: str) -> float:
        labels = {"service": "tests", "method": "GET", "route": route, "status": status}
        return REGISTRY.get_sample_value("recmesh_http_server_seconds_count", labels) or 0.0

    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://tests") as client:
        traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        answer = await client.get("/jobs/secret-id", headers={"traceparent": traceparent})
        await client.get("/nothing/here")
    assert answer.json()["trace"] == "0af7651916cd43dd8448eb211c80319c"
    assert counted("/jobs/{job_id}", "200") == 1
    assert counted("(no route)", "404") == 1


@pytest.mark.asyncio
@pytest.mark.usefixtures("tracing")
async def test_probes_have_no_spans() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(trace_ids()[0])

    traced = TraceMiddleware(app, service="tests", paths=("/v1/",))
    for path in ("/readyz", "/favicon.ico", "/v1/jobs"):
        await traced({"type": "http", "method": "GET", "path": path, "headers": []}, None, None)  # type: ignore[arg-type]
    with server_call("/grpc.health.v1.Health/Check", ()):
        seen.append(trace_ids()[0])
    assert [bool(trace) for trace in seen] == [False, False, True, False]


def test_the_callers_mistake_does_not_mark_a_span_as_failed() -> None:
    with pytest.raises(NotFound), span("look"):
        raise NotFound("no such job")


def test_the_page_keeps_only_the_newest_lines() -> None:
    recent = RecentLogs(capacity=3)
    for index in range(5):
        recent.emit(record(f"line {index}"))
    assert [line.message for line in recent.lines()] == ["line 2", "line 3", "line 4"]


def test_a_metric_asked_for_twice_is_the_same_metric() -> None:
    metrics = Metrics("brain", registry=CollectorRegistry())
    assert metrics.counter("plans", "Plans") is metrics.counter("plans", "Plans")
    with pytest.raises(TypeError, match="recmesh_brain_plans"):
        metrics.gauge("plans", "Plans")


@pytest.mark.usefixtures("tracing")
def test_spans_that_nobody_is_told_of_hand_the_trace_on_as_others_do() -> None:
    with span("first") as first:
        begun = current_traceparent()
        assert not first.is_recording() and begun.endswith("-01")
        with span("second"):
            assert current_traceparent().split("-")[1] == begun.split("-")[1]
            assert current_traceparent() != begun
    unwanted = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
    with span("of one that is not sampled", parent=extract({"traceparent": unwanted})):
        assert current_traceparent().endswith("-00")
