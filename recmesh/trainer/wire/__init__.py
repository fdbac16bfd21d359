"""The mesh as roles call it: `ports` over gRPC. The only room of the trainer that knows protobuf."""

from recmesh.trainer.wire.executors import RemoteExecutor
from recmesh.trainer.wire.runs import RemoteRuns
from recmesh.trainer.wire.servers import RemoteServer
from recmesh.trainer.wire.shards import RemoteShards

__all__ = ["RemoteExecutor", "RemoteRuns", "RemoteServer", "RemoteShards"]
