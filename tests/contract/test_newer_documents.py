"""Documents in buckets that replicas share: those of a newer release have more in them, and are read all the same."""

from typing import Any

import orjson
import pytest

from recmesh.formats import IntervalSet
from services.gateway.domain.models import ModelVersion, State
from services.gateway.domain.traffic import Traffic
from services.gateway.store.registry import Registry
from services.gateway.store.traffic import TrafficRules
from services.shardsvc import wire
from services.shardsvc.domain.run import Run
from tests.support.gateway import FakeBucket


def newer(document: bytes, **changed: Any) -> bytes:
    return orjson.dumps({**orjson.loads(document), "of_the_next_version": {"is": [1]}, **changed})


def test_a_run() -> None:
    run = Run(
        job_id="j", gen=2, batch_size=8, shard_batches=4, ttl_s=30.0, done=IntervalSet([(0, 8)]), life=3, closed=False
    )
    assert wire.run_from_bytes(newer(wire.run_to_bytes(run))) == run


@pytest.mark.asyncio
@pytest.mark.parametrize(("state", "seen"), [("ready", State.READY), ("being_folded", State.REGISTERED)])
async def test_a_model_version_in_a_state_known_or_not(state: str, seen: State) -> None:
    bucket: Any = FakeBucket()
    registry = Registry(bucket)
    await registry.create(ModelVersion("m", "1", "/m", "torch", state=State.READY))
    (key,) = bucket.values
    await bucket.update(key, newer(bucket.values[key].value, state=state), bucket.values[key].revision)
    assert [each.state for each in await registry.all()] == [seen]


@pytest.mark.asyncio
async def test_rules_of_traffic() -> None:
    bucket: Any = FakeBucket()
    rules = TrafficRules(bucket)
    wanted = Traffic(idle_s=60)
    await rules.put("m", wanted)
    await bucket.update("m", newer(bucket.values["m"].value), bucket.values["m"].revision)
    assert await rules.get("m") == wanted
