"""gRPC as recmesh speaks it: servers and channels for asyncio and for threads."""

from recmesh.runtime.deadline import deadline, remaining_s
from recmesh.runtime.rpc.channel import MeshChannel, channel
from recmesh.runtime.rpc.codec import mesh_error, status_of
from recmesh.runtime.rpc.server import RpcServer
from recmesh.runtime.rpc.sync import Lane, Pending, SyncServer, sync_channel, sync_server
from recmesh.runtime.tls import Tls

__all__ = [
    "Lane", "MeshChannel", "Pending", "RpcServer", "SyncServer", "Tls", "channel", "deadline", "mesh_error",
    "remaining_s", "status_of", "sync_channel", "sync_server",
]
