"""All calls of KEDA's external scaler over real gRPC, with and without TLS, as its operator makes them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf import descriptor_pb2

from recmesh.pb import externalscaler_pb2 as pb
from recmesh.pb import externalscaler_pb2_grpc as pb_grpc
from recmesh.runtime.rpc import RpcServer, Tls
from services.forecaster.rpc import keda
from services.forecaster.scaling import Scaler
from tests.support.certificates import certificates
from tests.support.forecasts import KnownFuture, SetClock

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]
NOW = 1_700_000_040.0
METADATA = {
    "scalerAddress": "forecaster:8443", "series": "model/ctr", "leadTime": "5m", "quantile": "0.5",
    "targetPerReplica": "12.5", "activation": "50",
}  # fmt: skip
REF = pb.ScaledObjectRef(name="ctr", namespace="ads", scalerMetadata=METADATA)


@pytest_asyncio.fixture
async def app(tmp_path: Path) -> AsyncIterator[KnownFuture]:
    made = KnownFuture(tmp_path, SetClock(NOW), lambda at: 40.0 if at < NOW + 200 else 99.5)
    made.measured("model/ctr")
    yield made
    made.store.close()


@asynccontextmanager
async def served(app: KnownFuture, tls: Tls | None = None) -> AsyncIterator[tuple[RpcServer, Scaler]]:
    scaler = Scaler(app, clock=app.clock, cache_s=0.05)
    server = RpcServer(
        "keda", "127.0.0.1:0", [keda.register(keda.KedaServicer(scaler))], tls=tls, service_names=[keda.SERVICE_NAME],
    )  # fmt: skip
    await server.start()
    try:
        yield server, scaler
    finally:
        await scaler.stop()
        await server.stop()


async def all_calls(stub: Any) -> None:
    spec = (await stub.GetMetricSpec(REF, timeout=20)).metricSpecs
    assert [(each.metricName, each.targetSizeFloat) for each in spec] == [("recmesh-model-ctr", 12.5)]
    asked = pb.GetMetricsRequest(scaledObjectRef=REF, metricName=spec[0].metricName)
    values = (await stub.GetMetrics(asked, timeout=20)).metricValues
    assert [(each.metricName, each.metricValue, each.metricValueFloat) for each in values] == [
        ("recmesh-model-ctr", 100, 99.5)
    ]
    assert (await stub.IsActive(REF, timeout=20)).result
    for stream, wanted in ((stub.StreamIsActive(REF), True), (stub.StreamMetricSpec(REF), None)):
        first = await asyncio.wait_for(stream.read(), 20)
        assert first.result is wanted if wanted is not None else first.metricSpecs == spec
        stream.cancel()


async def test_all_calls_without_tls(app: KnownFuture) -> None:
    async with served(app) as (server, _), grpc.aio.insecure_channel(server.address) as link:
        await all_calls(pb_grpc.ExternalScalerStub(link))


async def test_all_calls_with_a_client_certificate_and_none_without(app: KnownFuture, tmp_path: Path) -> None:
    mine = certificates(tmp_path)
    cert, key, ca = mine.read()
    options = [("grpc.ssl_target_name_override", "localhost")]
    async with served(app, mine) as (server, _):
        certified = grpc.ssl_channel_credentials(ca, key, cert)
        async with grpc.aio.secure_channel(server.address, certified, options=options) as link:
            await all_calls(pb_grpc.ExternalScalerStub(link))
        stranger = grpc.ssl_channel_credentials(ca)
        async with grpc.aio.secure_channel(server.address, stranger, options=options) as link:
            stub: Any = pb_grpc.ExternalScalerStub(link)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.IsActive(REF, timeout=20)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_refusals_have_codes_that_name_the_field(app: KnownFuture) -> None:
    async with served(app) as (server, _), grpc.aio.insecure_channel(server.address) as link:
        stub: Any = pb_grpc.ExternalScalerStub(link)
        wrong = pb.ScaledObjectRef(scalerMetadata=METADATA | {"quantile": "2"})
        unknown = pb.ScaledObjectRef(scalerMetadata=METADATA | {"series": "model/ctx"})
        other = pb.GetMetricsRequest(scaledObjectRef=REF, metricName="other")
        for call, code, word in (
            (stub.IsActive(wrong), "INVALID_ARGUMENT", "quantile"),
            (stub.GetMetricSpec(wrong), "INVALID_ARGUMENT", "quantile"),
            (stub.GetMetrics(other), "INVALID_ARGUMENT", "metricName"),
            (stub.StreamIsActive(wrong).read(), "INVALID_ARGUMENT", "quantile"),
            (stub.StreamMetricSpec(wrong).read(), "INVALID_ARGUMENT", "quantile"),
            (stub.IsActive(unknown), "NOT_FOUND", "did you mean model/ctr"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code().name == code
            assert word in str(caught.value.details())      # KEDA shows no more


async def test_a_stream_tells_changes_and_ends_with_the_service(app: KnownFuture) -> None:
    async with served(app) as (server, scaler), grpc.aio.insecure_channel(server.address) as link:
        stub: Any = pb_grpc.ExternalScalerStub(link)
        quiet = pb.ScaledObjectRef(scalerMetadata=METADATA | {"leadTime": "1m"})
        stream = stub.StreamIsActive(quiet)
        async with asyncio.timeout(30):
            told = aiter(stream)
            assert (await anext(told)).result is False
            app.clock.at = NOW + 150
            assert (await anext(told)).result is True
            await scaler.stop()
            assert not [each async for each in told]
            assert await stream.code() is grpc.StatusCode.OK


async def test_the_wire_is_kedas_own() -> None:
    """Names, types and numbers as in kedacore/keda, pkg/scalers/externalscaler/externalscaler.proto."""
    file = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(file)
    kinds = {1: "double", 3: "int64", 8: "bool", 9: "string", 11: "message"}
    fields = {
        message.name: [(field.number, field.name, kinds[field.type], field.label == 3) for field in message.field]
        for message in file.message_type
    }
    assert keda.SERVICE_NAME == "externalscaler.ExternalScaler" and file.syntax == "proto3"
    assert fields == {
        "ScaledObjectRef": [
            (1, "name", "string", False), (2, "namespace", "string", False), (3, "scalerMetadata", "message", True),
        ],
        "IsActiveResponse": [(1, "result", "bool", False)],
        "GetMetricSpecResponse": [(1, "metricSpecs", "message", True)],
        "MetricSpec": [
            (1, "metricName", "string", False), (2, "targetSize", "int64", False),
            (3, "targetSizeFloat", "double", False),
        ],
        "GetMetricsRequest": [(1, "scaledObjectRef", "message", False), (2, "metricName", "string", False)],
        "GetMetricsResponse": [(1, "metricValues", "message", True)],
        "MetricValue": [
            (1, "metricName", "string", False), (2, "metricValue", "int64", False),
            (3, "metricValueFloat", "double", False),
        ],
    }  # fmt: skip
    methods = file.service[0].method
    assert [(each.name, each.input_type, each.output_type, each.server_streaming) for each in methods] == [
        ("IsActive", ".externalscaler.ScaledObjectRef", ".externalscaler.IsActiveResponse", False),
        ("StreamIsActive", ".externalscaler.ScaledObjectRef", ".externalscaler.IsActiveResponse", True),
        ("GetMetricSpec", ".externalscaler.ScaledObjectRef", ".externalscaler.GetMetricSpecResponse", False),
        ("GetMetrics", ".externalscaler.GetMetricsRequest", ".externalscaler.GetMetricsResponse", False),
        ("StreamMetricSpec", ".externalscaler.ScaledObjectRef", ".externalscaler.GetMetricSpecResponse", True),
    ]
