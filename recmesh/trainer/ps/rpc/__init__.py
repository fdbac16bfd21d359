"""The parameter server on the wire: its service, and the services it calls. Protobuf stays in this room."""

from recmesh.trainer.ps.rpc.checkpoints import CheckpointClient
from recmesh.trainer.ps.rpc.moving import RemoteTarget
from recmesh.trainer.ps.rpc.servicer import LANES, SERVICE_NAME, ParameterServerServicer, add_to_server

__all__ = ["LANES", "SERVICE_NAME", "CheckpointClient", "ParameterServerServicer", "RemoteTarget", "add_to_server"]
