"""The NATS micro protocol: $SRV.PING, INFO and STATS, so that `nats micro ls` finds every service."""

import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import orjson
from nats.aio.msg import Msg

from recmesh.runtime.bus.link import Link, Subscription
from recmesh.runtime.errors import InvalidArgument


class MicroService:
    """Answers for one service; the requests themselves go over gRPC, so it has no endpoints.

    `stats` is asked at each STATS request; what it returns is the answer's `data`.
    """

    def __init__(
        self, link: Link, name: str, *, version: str, description: str,
        stats: Callable[[], Mapping[str, Any]], metadata: Mapping[str, str] | None = None,
    ) -> None:
        if not name.replace("-", "").replace("_", "").isalnum():
            raise InvalidArgument(f"{name!r} is no micro service name: letters, digits, '-' and '_'")
        self.name = f"micro {name}"
        self.id = uuid.uuid4().hex
        self._link = link
        self._identity = {"name": name, "id": self.id, "version": version, "metadata": dict(metadata or {})}
        self._description = description
        self._stats = stats
        self._started = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._subscriptions: list[Subscription] = []

    async def start(self) -> None:
        """Listen for all services, for those of this name, and for this very one."""
        verbs: Mapping[str, Callable[[], Mapping[str, Any]]] = {
            "PING": lambda: {}, "INFO": self._info, "STATS": self._statistics,
        }
        for verb, body in verbs.items():
            for subject in (f"$SRV.{verb}", f"$SRV.{verb}.{self._identity['name']}",
                            f"$SRV.{verb}.{self._identity['name']}.{self.id}"):
                self._subscriptions.append(await self._link.subscribe(subject, self._answer(verb, body)))

    async def stop(self) -> None:
        """Answer no more."""
        for subscription in self._subscriptions:
            await self._link.unsubscribe(subscription)

    def _answer(self, verb: str, body: Callable[[], Mapping[str, Any]]) -> Any:
        async def answer(message: Msg) -> None:
            if message.reply:
                kind = f"io.nats.micro.v1.{verb.lower()}_response"
                reply = {"type": kind, **self._identity, **body()}
                await self._link.send(message.reply, orjson.dumps(reply, default=str))

        return answer

    def _info(self) -> Mapping[str, Any]:
        return {"description": self._description, "endpoints": []}

    def _statistics(self) -> Mapping[str, Any]:
        return {"started": self._started, "endpoints": [], "data": dict(self._stats())}
