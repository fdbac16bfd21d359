"""Fixtures of more than one module here."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.unit.shardsvc.topic_world import World


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World()
    for module in ("recmesh.data.topics.reader", "recmesh.data.index"):
        monkeypatch.setattr(f"{module}.topic_of", lambda source: made.topic)
    yield made
    for replica in made.replicas:
        asyncio.run(replica.streams.stop())
