"""ckptcaches of other nodes, over gRPC."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence

import grpc

from recmesh.pb import ckptcache_pb2 as pb
from recmesh.pb import ckptcache_pb2_grpc as pb_grpc
from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import Unavailable
from services.ckptcache.domain.parts import Part, PartFile

FETCH_S = 3600.0
CALL_S = 2 * FETCH_S
"""Longer than any call that began while its peer was resolved, and what was done with the peer before it."""


class GrpcPeer:
    """See app.ports.Peer."""

    def __init__(self, address: str, channel: grpc.aio.Channel, *, node: str) -> None:
        self.address, self._node = address, node
        self._stub = pb_grpc.CheckpointsStub(channel)

    async def hold(
        self, job_id: str, number: int, gen: int, part: Part, data: AsyncIterator[bytes], *, timeout_s: float
    ) -> None:
        """See app.ports.Peer."""

        async def messages() -> AsyncIterator[pb.PartChunk]:
            files = [pb.PartFile(name=f.name, offset=f.offset, size_bytes=f.size_bytes, sha256=f.sha256)
                     for f in part.files]
            yield pb.PartChunk(header=pb.StorePartRequest(
                job_id=job_id, gen=gen, snapshot=number, ps=part.ps, size_bytes=part.size_bytes, files=files,
                part_json=part.document, node=self._node))
            async for chunk in data:
                yield pb.PartChunk(data=chunk)

        await self._stub.HoldReplica(messages(), timeout=timeout_s)

    async def locate(self, part_uri: str, *, timeout_s: float) -> Part:
        """See app.ports.Peer."""
        reply = await self._stub.LocateReplica(pb.LocateRequest(part_uri=part_uri), timeout=timeout_s)
        files = tuple(PartFile(f.name, f.offset, f.size_bytes, f.sha256) for f in reply.files)
        return Part(int(part_uri.rpartition("-")[2]), files, reply.part_json)

    async def fetch(self, part_uri: str, file: str) -> AsyncIterator[bytes]:
        """See app.ports.Peer."""
        request = pb.FetchPartRequest(part_uri=part_uri, file=file)
        async for chunk in self._stub.FetchReplica(request, timeout=FETCH_S):
            yield chunk.data

    async def drop(self, job_id: str, number: int) -> None:
        """See app.ports.Peer."""
        await self._stub.DropReplica(pb.DropReplicaRequest(job_id=job_id, snapshot=number), timeout=10.0)


class GrpcPeers:
    """The configured peers. A host name with several addresses, as a headless service has, is one peer at each."""

    def __init__(
        self, configured: Sequence[str], connect: Callable[[str], grpc.aio.Channel], *, node: str, clock: Clock
    ) -> None:
        self.configured, self._connect, self._node, self._clock = tuple(configured), connect, node, clock
        self._known: dict[str, tuple[GrpcPeer, grpc.aio.Channel]] = {}
        self._resolved_at: dict[str, float] = {}

    async def all(self) -> Sequence[GrpcPeer]:
        """As names resolve now; Unavailable when none does."""
        addresses = []
        for given in self.configured:
            host, _, port = given.rpartition(":")
            try:
                loop = asyncio.get_running_loop()
                found = await loop.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
            except (OSError, ValueError):
                continue
            addresses += [f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
                          for ip in sorted({str(entry[4][0]) for entry in found})]
        if not addresses:
            raise Unavailable(f"none of the peers {', '.join(self.configured)} is known by name")
        for address in dict.fromkeys(addresses):
            if address not in self._known:
                line = self._connect(address)
                self._known[address] = GrpcPeer(address, line, node=self._node), line
            self._resolved_at[address] = self._clock.monotonic()
        await self._close_gone()
        return [self._known[address][0] for address in dict.fromkeys(addresses)]

    async def _close_gone(self) -> None:
        """Closes channels to addresses that no name has had for so long that no call to them is under way."""
        until = self._clock.monotonic() - CALL_S
        for address in [address for address, at in self._resolved_at.items() if at < until]:
            del self._resolved_at[address]
            _, line = self._known.pop(address)
            await line.close(grace=None)

    async def close(self) -> None:
        """Closes all channels."""
        known, self._known, self._resolved_at = self._known, {}, {}
        for _, line in known.values():
            await line.close(grace=None)
