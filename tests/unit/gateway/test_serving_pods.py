"""The pods' component as the service's lifecycle sees it."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from services.gateway.runtimes.pods import PodSettings, ServingPods

pytestmark = pytest.mark.asyncio


class Api:
    """Lists nothing; then its watch brings an object that no API server would send."""

    def __init__(self) -> None:
        self.broken = asyncio.Event()

    async def list(self, *_: Any, **__: Any) -> tuple[list[Any], str]:
        return [], "1"

    def stream(self, *_: Any, **__: Any) -> Any:
        async def events() -> Any:
            await self.broken.wait()
            yield {"type": "ADDED", "object": {"metadata": {"resourceVersion": "2"}}}

        async def enter() -> Any:
            return events()

        async def leave(*_: Any) -> None:
            return None

        return type("Stream", (SimpleNamespace,), {
            "__aenter__": lambda _self: enter(), "__aexit__": lambda _self, *given: leave(*given),
        })()  # fmt: skip

    async def close(self) -> None:
        return None


async def test_a_watch_that_dies_of_a_mistake_ends_the_wait_and_with_it_the_service() -> None:
    api = Api()
    pods = ServingPods(api, PodSettings(namespace="n", holder="g", images={}), token="t")  # type: ignore[arg-type]
    await pods.start()
    try:
        waits = asyncio.create_task(pods.wait())
        await asyncio.sleep(0.05)
        assert not waits.done()
        api.broken.set()
        with pytest.raises(KeyError):
            await asyncio.wait_for(waits, timeout=5.0)
    finally:
        await pods.stop()
