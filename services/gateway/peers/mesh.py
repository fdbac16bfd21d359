"""Channels to the other services, and whether they are well."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from recmesh.runtime.errors import MeshError, Unavailable
from recmesh.runtime.rpc import Tls, channel

PROBE_S = 2.0
PRESENT_S = 2.0
"""A service that was killed is back within so long, mostly, on one machine."""


@dataclass(frozen=True, slots=True)
class ServiceHealth:
    """What a service's health endpoint says."""

    service: str
    status: str
    """serving | not_serving | unreachable"""
    reason: str
    latency_s: float
    address: str


class Mesh:
    """One channel for each service, opened on first use, kept."""

    name = "peers"

    def __init__(
        self, addresses: Mapping[str, str], *, token: str | None, tls: Tls | None, present_s: float = PRESENT_S,
    ) -> None:
        """present_s: how long `present` waits for a service that is away."""
        self._addresses = dict(addresses)
        self._present_s = present_s
        self._channels = {
            service: channel(address, token=token, tls=tls, who=service)
            for service, address in addresses.items()
            if address
        }

    async def start(self) -> None:
        """Channels connect when they are used."""

    async def stop(self) -> None:
        """Close the channels."""
        await asyncio.gather(*(item.close(None) for item in self._channels.values()))

    def channel(self, service: str) -> grpc.aio.Channel:
        """The channel to a service that has an address."""
        return self._channels[service]

    async def present(self, service: str) -> grpc.aio.Channel:
        """The channel to a service that has an address, once it is connected; Unavailable says soon that it is not.

        For calls that somebody waits for, and nothing is lost without: others wait as long as their deadline allows.
        """
        found = self._channels[service]
        try:
            async with asyncio.timeout(self._present_s):
                await found.channel_ready()
        except TimeoutError:
            raise Unavailable(
                f"{service} at {self._addresses[service]} does not run, or cannot be reached: `recmesh status` tells "
                f"how it is, `recmesh logs {service}` why, and `recmesh up` starts it",
                reason="SERVICE_AWAY",
            ) from None
        return found

    async def health(self) -> list[ServiceHealth]:
        """All services, asked at the same time."""
        return list(await asyncio.gather(*(self._probe(service) for service in self._addresses)))

    async def _probe(self, service: str) -> ServiceHealth:
        address = self._addresses[service]
        if not address:
            return ServiceHealth(service, "unreachable", "its address is not configured", 0.0, "")
        started = time.monotonic()
        stub = health_pb2_grpc.HealthStub(self._channels[service])
        try:
            reply = await stub.Check(health_pb2.HealthCheckRequest(), timeout=PROBE_S)
        except MeshError as error:
            return ServiceHealth(service, "unreachable", error.message, time.monotonic() - started, address)
        serving = reply.status == health_pb2.HealthCheckResponse.SERVING
        status, reason = ("serving", "") if serving else ("not_serving", "starting or draining")
        return ServiceHealth(service, status, reason, time.monotonic() - started, address)
