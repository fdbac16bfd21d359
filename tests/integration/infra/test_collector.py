"""The collector's configuration in the real collector: a service's spans pass it, and metrics of models' own code."""

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from recmesh.pb import brain_pb2 as pb
from recmesh.pb import brain_pb2_grpc
from recmesh.runtime.rpc.sync import sync_channel
from tests.support.overlays import ROOT, TOOLS
from tests.support.servers import NatsServer, free_port, nats
from tests.support.service_process import service
from tests.support.waiting import until, until_answers

__all__ = ["nats"]
pytestmark = pytest.mark.integration
CONFIGURATION = ROOT / "infra" / "monitoring" / "otel" / "collector.yaml"


@dataclass(frozen=True, slots=True)
class Collector:
    """One that runs, and where."""

    otlp: str
    metrics: str


@dataclass
class Storage(trace_service_pb2_grpc.TraceServiceServicer):
    """Where spans end up, as in Tempo or Jaeger: name of the service, and of the span."""

    spans: list[tuple[str, str]] = field(default_factory=list)

    def Export(self, request: Any, context: grpc.ServicerContext) -> Any:
        for resource in request.resource_spans:
            named = {item.key: item.value.string_value for item in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [(named["service.name"], span.name) for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()


@pytest.fixture
def storage() -> Iterator[tuple[Storage, str]]:
    server = grpc.server(ThreadPoolExecutor(2))
    made = Storage()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(made, server)  # type: ignore[no-untyped-call]  # generated
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield made, f"127.0.0.1:{port}"
    server.stop(None).wait(10)


def binary() -> Path:
    if not (TOOLS / "unpack").exists():
        pytest.skip(f"no collector: {TOOLS}/unpack is not there")
    cache = subprocess.run(
        [TOOLS / "unpack", "otelcol"], capture_output=True, text=True, check=True, timeout=300
    ).stdout.split()[-1]
    return Path(cache) / "otelcol" / "otelcol"


@contextmanager
def collector(folder: Path, traces: str) -> Iterator[Collector]:
    health, grpc_port, http_port, metrics = (free_port() for _ in range(4))
    env = os.environ | {
        "OTEL_TRACES_ENDPOINT": traces, "OTEL_HEALTH_ADDRESS": f"127.0.0.1:{health}",
        "OTEL_GRPC_ADDRESS": f"127.0.0.1:{grpc_port}", "OTEL_HTTP_ADDRESS": f"127.0.0.1:{http_port}",
        "OTEL_METRICS_ADDRESS": f"127.0.0.1:{metrics}",
    }  # fmt: skip
    log = folder / "otelcol.log"
    with log.open("wb") as file:
        process = subprocess.Popen([binary(), "--config", CONFIGURATION], env=env, stderr=file)

    try:
        until_answers(process, f"http://127.0.0.1:{health}/", log=log)
        yield Collector(f"127.0.0.1:{grpc_port}", f"http://127.0.0.1:{metrics}/metrics")
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)


@pytest.mark.long
def test_spans_of_a_service_and_metrics_of_models_pass(
    nats: NatsServer, storage: tuple[Storage, str], tmp_path: Path
) -> None:
    kept, address = storage
    with collector(tmp_path, address) as made:
        env = {"RECMESH_NATS_URL": nats.url, "RECMESH_OTLP_ENDPOINT": made.otlp}
        with service("brain", tmp_path / "brain", env=env) as brain:
            with sync_channel(brain.address()) as link:
                stub: Any = brain_pb2_grpc.BrainStub(link)
                stub.Plan(pb.PlanRequest(job=pb.JobMeta(job_id="traced", model="dcn")), timeout=10)
            until(lambda: any(name == "brain" and "Plan" in span for name, span in kept.spans), timeout_s=60)
        exporter = OTLPMetricExporter(endpoint=made.otlp, insecure=True, timeout=10)
        reader = PeriodicExportingMetricReader(exporter, export_interval_millis=60_000)
        provider = MeterProvider([reader], resource=Resource.create({"service.name": "my-model"}))
        provider.get_meter("tests").create_counter("my_batches").add(3)
        provider.shutdown()

        def shown() -> list[str]:
            text = httpx.get(made.metrics, timeout=10, trust_env=False).text
            return [line for line in text.splitlines() if line.startswith("my_batches_total{")]

        until(shown, timeout_s=30)
        assert 'service_name="my-model"' in shown()[0] and shown()[0].endswith(" 3")


def test_the_collector_takes_the_configuration() -> None:
    done = subprocess.run(
        [binary(), "validate", "--config", CONFIGURATION], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
