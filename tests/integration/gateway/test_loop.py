"""Predictions and labels over a real NATS: stored, joined to samples, dropped rather than waited for."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from nats.aio.client import Client
from prometheus_client import REGISTRY

from recmesh.join.process import JoinProcess
from recmesh.runtime.bus import Bus
from recmesh.runtime.errors import NotFound
from recmesh.runtime.events import Event, serving
from recmesh.serving.settings import PredictionLog
from recmesh.spec.join import LabelJoin
from services.gateway.app.labels import Labels
from services.gateway.domain.callers import Caller
from services.gateway.domain.predictions import Prediction
from services.gateway.domain.tensors import Tensor
from services.gateway.events import topics as topic_events
from services.gateway.events.topics import WAITING, LabelSender, PredictionSender, Retention, Topics
from tests.support.gateway import FakeClock
from tests.support.servers import NatsServer, nats

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]
__all__ = ["nats"]

AT = 1_790_000_000.0


class Clock(FakeClock):
    def now(self) -> float:
        return AT + 1.0


def prediction(number: int, *, topic: str = "shown") -> Prediction:
    inputs = (Tensor.of("km", np.array([float(number)], np.float32)),)
    outputs = (Tensor.of("predictions", np.array([0.25], np.float32)),)
    return Prediction(
        f"r{number}", "ctr", "1", AT + number / 1000, PredictionLog(topic=topic), "columns", inputs, outputs
    )


async def messages(server: NatsServer, topic: str, count: int) -> list[dict[str, Any]]:
    """The first messages of a topic of one partition, once there are as many."""
    client = Client()
    await client.connect(server.url)
    try:
        found: list[dict[str, Any]] = []
        async with asyncio.timeout(60):
            while f"{topic}-0" not in await names(client):  # noqa: ASYNC110 (another process makes it)
                await asyncio.sleep(0.05)
            subscription = await client.jetstream().subscribe(f"{topic}.0", ordered_consumer=True)
            while len(found) < count:
                found.append(orjson.loads((await subscription.next_msg(timeout=60)).data))
        return found
    finally:
        await client.close()


async def names(client: Client) -> list[str]:
    """Of all streams."""
    return [str(each.config.name) for each in await client.jetstream().streams_info()]


async def test_predictions_and_labels_become_samples(nats: NatsServer) -> None:
    bus = Bus(nats.url, "gateway")
    await bus.start()
    topics = Topics(bus.link, Retention())
    sender, labels = PredictionSender(bus, topics), Labels(LabelSender(bus, topics).post, clock=Clock())
    commands = topic_events.consumer(bus, labels)
    await sender.start()
    await commands.start()
    for number in range(20):
        assert sender.offer(prediction(number))
    assert sender.offer(prediction(3)), "a request that is sent again"
    shown = await messages(nats, "shown", 20)
    told = [{"id": f"r{number}", "value": number % 2, "time": AT + 0.5} for number in range(10)]
    assert [await labels.post("clicks", told) for _ in range(2)] == [0, 10]
    entries = [serving.LabelEntry(id="r19", value=1, time=AT + 0.5)]
    await bus.publish(Event(serving.LABEL_POST, "here", serving.LabelPost(labels=entries, topic="clicks")))
    await messages(nats, "clicks", 11)
    spec = LabelJoin.parse({
        "name": "loop", "window": "60s", "label": "clicked", "topic": {"topic": "joined"},
        "samples": {"topic": "shown", "key": "recmesh_id"},
        "labels": {"topic": "clicks", "key": "id", "value": "value", "time": "time"},
    })
    join = JoinProcess(spec, bus.link, to_end=True)
    await join.run()
    joined = await messages(nats, "joined", 20)
    await commands.stop()
    await sender.stop()
    await bus.stop()
    assert len(shown) == 20
    assert {row["recmesh_id"]: row["clicked"] for row in joined} == {
        f"r{number}": number % 2 if number < 10 else int(number == 19) for number in range(20)
    }
    assert {row["km"] for row in joined} == {float(number) for number in range(20)}
    assert (join.counts["labelled"], join.counts["defaulted"], join.counts["unreadable"]) == (11, 9, 0)


async def test_without_nats_what_is_too_much_is_dropped_and_the_rest_is_sent_later(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats")
    server.start()
    bus = Bus(server.url, "gateway")
    await bus.start()
    sender = PredictionSender(bus, Topics(bus.link, Retention()))
    await sender.start()
    sender.offer(prediction(0))
    await messages(server, "shown", 1)
    server.kill()
    taken = [sender.offer(prediction(number)) for number in range(1, WAITING + 11)]     # no await: nothing is sent
    assert taken == [True] * WAITING + [False] * 10
    server.start()
    found = await messages(server, "shown", WAITING + 1)
    assert [row["recmesh_id"] for row in found] == [f"r{number}" for number in range(WAITING + 1)]
    await sender.stop()
    await bus.stop()
    server.kill()


async def test_a_topic_that_cannot_be_does_not_stop_the_others(nats: NatsServer) -> None:
    bus = Bus(nats.url, "gateway")
    await bus.start()
    await bus.link.call("overlap", lambda session: session.js.add_stream(name="all", subjects=["taken.>"]))
    sender = PredictionSender(bus, Topics(bus.link, Retention()))
    await sender.start()
    sender.offer(prediction(1, topic="taken"))
    sender.offer(prediction(2))
    assert [row["recmesh_id"] for row in await messages(nats, "shown", 1)] == ["r2"]
    await sender.stop()
    await bus.stop()


def dropped(reason: str) -> float:
    found = REGISTRY.get_sample_value("recmesh_gateway_predictions_dropped_total", {"reason": reason})
    return found or 0.0


async def test_what_cannot_be_logged_keeps_no_others_waiting(nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_events, "AGAIN_S", 3600.0)     # whoever waits for it waits for ever
    bus = Bus(nats.url, "gateway")
    await bus.start()
    await bus.link.call("overlap", lambda session: session.js.add_stream(name="all", subjects=["taken.>"]))
    sender = PredictionSender(bus, Topics(bus.link, Retention()))
    await sender.start()
    large = (Tensor.of("km", np.zeros((1, 600_000), np.float32)),)
    before = dropped("TOO_LARGE")
    for number in range(3):
        sender.offer(prediction(number, topic="taken"))
        sender.offer(replace(prediction(100 + number), inputs=large))
        sender.offer(prediction(number))
    assert [row["recmesh_id"] for row in await messages(nats, "shown", 3)] == ["r0", "r1", "r2"]
    await sender.stop()
    await bus.stop()
    assert dropped("TOO_LARGE") - before == 3


async def test_what_is_not_sent_at_the_end_is_counted(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats")
    server.start()
    bus = Bus(server.url, "gateway")
    await bus.start()
    sender = PredictionSender(bus, Topics(bus.link, Retention()))
    await sender.start()
    server.kill()
    async with asyncio.timeout(30):
        while bus.connected:  # noqa: ASYNC110 (nobody signals it)
            await asyncio.sleep(0.01)
    before = dropped("STOPPED")
    for number in range(5):
        sender.offer(prediction(number))
    await asyncio.sleep(0.2)                      # the first one is taken, and waits for the server
    await sender.stop()
    await bus.stop()
    assert dropped("STOPPED") - before == 5


async def test_who_may_only_run_models_makes_no_topics(nats: NatsServer) -> None:
    bus = Bus(nats.url, "gateway")
    await bus.start()
    labels = Labels(LabelSender(bus, Topics(bus.link, Retention())).post, clock=Clock())
    runs = Caller("app", scopes=frozenset({"infer"}))
    with pytest.raises(NotFound, match="topic: there is no topic clicks"):
        await labels.post("clicks", [{"id": "a"}], caller=runs)
    assert await labels.post("clicks", [{"id": "a"}], caller=Caller("owner", scopes=frozenset({"jobs"}))) == 0
    assert await labels.post("clicks", [{"id": "a"}], caller=runs) == 1
    await bus.stop()
