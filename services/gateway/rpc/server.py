"""The gRPC port: the registry for the mesh, the inference protocol for everyone."""

import grpc

from recmesh.pb import gateway_pb2_grpc, inference_pb2_grpc
from recmesh.runtime.rpc import RpcServer, Tls
from services.gateway.app.access import Access
from services.gateway.app.audit import Audit
from services.gateway.app.inference import Inference
from services.gateway.app.models import Models
from services.gateway.rpc import inference as inference_rpc
from services.gateway.rpc import models as models_rpc
from services.gateway.store.shared_memory import Access as SharedAccess
from services.gateway.store.shared_memory import SharedRegions


def server(
    address: str,
    models: Models,
    inference: Inference,
    regions: SharedRegions,
    *,
    token: str | None,
    access: Access,
    tls: Tls | None,
    shared: SharedAccess = "loopback",
    audit: Audit | None = None,
) -> RpcServer:
    """The component. Each service checks its own credential: the mesh's token, or the public API key."""
    registry = models_rpc.ModelsServicer(models, token=token)
    public = inference_rpc.InferenceServicer(models, inference, regions, access=access, shared=shared, audit=audit)

    def register(target: grpc.aio.Server) -> None:
        gateway_pb2_grpc.add_ModelsServicer_to_server(registry, target)
        inference_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(public, target)

    names = [models_rpc.SERVICE, inference_rpc.SERVICE]
    return RpcServer("rpc", address, [register], tls=tls, service_names=names)
