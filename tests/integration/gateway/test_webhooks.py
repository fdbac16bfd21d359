"""Webhooks with a real NATS and a real HTTP receiver: order, repeats, restarts, dead letters, who delivers."""

import asyncio
import json
import random
import signal
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import REGISTRY
from typer.testing import CliRunner

from recmesh.cli.exit_codes import exit_code
from recmesh.cli.main import app
from recmesh.client import Client
from recmesh.runtime.bus import Bus, Place, follow
from recmesh.runtime.clock import system_clock
from recmesh.runtime.errors import MeshError, NotFound, Unavailable
from recmesh.runtime.events import Event, access, catalog, decode
from services.gateway.app.deliveries import Deliveries, Namespaces
from services.gateway.domain.addresses import networks
from services.gateway.domain.signing import secret_of
from services.gateway.domain.webhooks import Patience, Webhook
from services.gateway.events.history import JobHistory
from services.gateway.events.webhooks import DeadLetters
from services.gateway.peers.webhooks import Poster, trust
from services.gateway.store.webhooks import BUCKET, LEASE_BUCKET, Lease, WebhookStore
from tests.integration.gateway.test_service import Service, running
from tests.support.certificates import certificates
from tests.support.receiver import Came, Receiver, receiver
from tests.support.servers import NatsServer, nats
from tests.support.waiting import until

pytestmark = pytest.mark.integration
__all__ = ["nats"]

SECRET = secret_of(b"s" * 32)
QUICK = Patience(first_s=0.02, factor=2.0, most_s=0.1, give_up_s=60.0)
TTL_S = 60.0
"""No test waits for its end: a slow machine must not lose the lease."""


@pytest.fixture
def hooked() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


def hook_to(receiver: Receiver, **more: Any) -> Webhook:
    return replace(Webhook("ci", receiver.url, ("job.progressed",), SECRET, created=time.time()), **more)


class World:
    """One gateway's part in webhooks, without the rest of it."""

    def __init__(self, nats: NatsServer, *, patience: Patience = QUICK, jobs: dict[str, str] | None = None) -> None:
        self.bus = Bus(nats.url, "jobmaster")
        self._patience = patience
        self._jobs = jobs or {}
        self.deliveries: Deliveries
        self.store: WebhookStore

    async def job(self, job_id: str) -> dict[str, Any]:
        if job_id not in self._jobs:
            raise NotFound(job_id)
        return {"spec": {"export": {"namespace": self._jobs[job_id]}}}

    async def start(self) -> None:
        await self.bus.start()
        self.store = WebhookStore(self.bus.kv(BUCKET))
        lease = Lease(
            self.bus.kv(LEASE_BUCKET, ttl_s=TTL_S), identity=random.randbytes(8).hex(), clock=system_clock, ttl_s=TTL_S
        )
        poster = Poster(allowed=networks("127.0.0.0/8"), tls=trust(""))
        self.deliveries = Deliveries(
            self.bus, self.store, poster, lease, job=self.job, clock=system_clock, patience=self._patience,
            luck=random.random,
        )
        await self.deliveries.start()

    async def stop(self) -> None:
        await self.deliveries.stop()
        await self.bus.stop()

    async def tell(self, job_id: str, samples: int) -> None:
        await self.bus.publish(Event(catalog.JOB_PROGRESSED, job_id, catalog.JobProgressed(samples=samples)))


@asynccontextmanager
async def world(nats: NatsServer, **options: Any) -> AsyncIterator[World]:
    made = World(nats, **options)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def eventually(condition: Callable[[], object], *, timeout_s: float = 30.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 (a receiver in a thread signals nobody)
            await asyncio.sleep(0.02)


def by_entity(came: list[Came]) -> dict[str, list[int]]:
    """Numbers in the order in which they were taken first."""
    found: dict[str, list[int]] = defaultdict(list)
    for each in came:
        entity, number = each.what
        if number not in found[entity]:
            found[entity].append(number)
    return dict(found)


@pytest.mark.asyncio
async def test_events_of_an_entity_come_in_order_though_many_are_refused_first(
    nats: NatsServer, hooked: Receiver
) -> None:
    refused: set[str] = set()

    def answer(headers: dict[str, str], body: bytes) -> int:
        first = headers["webhook-id"] not in refused
        refused.add(headers["webhook-id"])
        return 503 if first and int(headers["webhook-id"][-1], 16) % 3 == 0 else 202

    hooked.answer = answer
    async with world(nats) as made:
        await made.store.create(hook_to(hooked))
        made.deliveries.wake()
        for number in range(20):
            for entity in "abcd":
                await made.tell(entity, number)
        await eventually(lambda: len(hooked.taken()) >= 80)
        record = made.deliveries.records()["ci"]
        await eventually(lambda: record.delivered == 80)
        assert (record.delivered, record.dead) == (80, 0) and record.failures == len(hooked.came) - 80 > 0
    assert by_entity(hooked.taken()) == {entity: list(range(20)) for entity in "abcd"}
    assert len({each.headers["webhook-id"] for each in hooked.came}) == 80, "a repeat has the id that it had"
    assert all(each.is_signed_with(SECRET) for each in hooked.came)
    assert not any(each.is_signed_with(secret_of(b"t" * 32)) for each in hooked.came)


@pytest.mark.asyncio
async def test_what_a_receiver_never_takes_is_a_dead_letter_with_the_reason_and_others_go_on(
    nats: NatsServer, hooked: Receiver
) -> None:
    hooked.answer = lambda headers, body: 413 if b'"a"' in body else 500 if b'"b"' in body else 200
    async with world(nats, patience=replace(QUICK, give_up_s=0.5)) as made:
        await made.store.create(hook_to(hooked))
        made.deliveries.wake()
        for entity in "abc":
            await made.tell(entity, 1)
        await eventually(lambda: made.deliveries.records().get("ci") and made.deliveries.records()["ci"].dead == 2)
        await eventually(lambda: hooked.taken())
        letters = await DeadLetters(made.bus).newest("webhook-ci", 10)
        place = made.store.place
        hook = await made.store.get("ci")
        newest = await made.bus.last_sequence()
        async with asyncio.timeout(20):
            while await place(hook) < newest:  # noqa: ASYNC110 (it is written down now and then)
                await asyncio.sleep(0.05)
    told = {each.event.entity_id: (each.reason, each.attempts) for each in letters}
    assert told["a"] == ("HTTP 413: ok", 1)
    assert told["b"][0] == "HTTP 500: ok" and told["b"][1] > 1
    assert by_entity(hooked.taken()) == {"c": [1]}


@pytest.mark.asyncio
async def test_reads_of_stored_events_end_while_the_bus_is_away(nats: NatsServer, hooked: Receiver) -> None:
    async with world(nats) as made:
        await made.tell("a", 1)
        history, letters = JobHistory(made.bus, read_s=1.0), DeadLetters(made.bus, read_s=1.0)
        nats.kill()
        for read in (history.history("a", after=0, limit=10), letters.newest("webhook-ci", 10)):
            with pytest.raises(Unavailable):
                await read
        nats.start()
        async with asyncio.timeout(60):
            while True:
                try:
                    assert len(await history.history("a", after=0, limit=10)) == 1
                    break
                except Unavailable:
                    await asyncio.sleep(0.1)


def behind(hook: str) -> float | None:
    return REGISTRY.get_sample_value("recmesh_gateway_webhook_behind", {"webhook": hook})


@pytest.mark.asyncio
async def test_a_webhook_that_is_deleted_is_told_of_no_more(nats: NatsServer, hooked: Receiver) -> None:
    async with world(nats) as made:
        await made.store.create(hook_to(hooked, name="passing"))
        made.deliveries.wake()
        await made.tell("a", 1)
        await eventually(lambda: behind("passing") == 0.0)
        await made.store.delete("passing")
        made.deliveries.wake()
        await eventually(lambda: behind("passing") is None)


@pytest.mark.asyncio
async def test_a_receiver_that_is_gone_is_sent_nothing_more(nats: NatsServer, hooked: Receiver) -> None:
    hooked.answer = lambda headers, body: 410
    async with world(nats) as made:
        await made.store.create(hook_to(hooked))
        made.deliveries.wake()
        await made.tell("a", 1)
        await eventually(lambda: any(hook.disabled for hook in made.deliveries.hooks))
        await eventually(lambda: not made.deliveries.records())
        before = len(hooked.came)
        await made.tell("a", 2)
        told = [event.data async for _, event in made.bus.events(access.WEBHOOK_DISABLED.subject, to_end=True)]
        await asyncio.sleep(0.3)
        assert [each.webhook for each in told] == ["ci"] and "410" in told[0].reason
        assert len(hooked.came) == before


@pytest.mark.asyncio
async def test_a_webhook_begins_where_it_was_made_and_goes_on_where_another_deliverer_was(
    nats: NatsServer, hooked: Receiver
) -> None:
    async with world(nats) as first:
        await first.tell("a", 0)                                     # before it was made
        await first.store.create(hook_to(hooked, after=await first.bus.last_sequence()))
        first.deliveries.wake()
        for number in (1, 2):
            await first.tell("a", number)
        await eventually(lambda: len(hooked.taken()) == 2)
        assert first.deliveries.is_deliverer
        async with world(nats) as second:
            await second.tell("a", 3)
            await eventually(lambda: len(hooked.taken()) == 3)
            assert not second.deliveries.is_deliverer and not second.deliveries.records(), "one delivers at a time"
            await eventually(lambda: first.deliveries.records()["ci"].delivered == 3)
            await first.deliveries.stop()                            # gives the lease up
            second.deliveries.wake()
            await second.tell("a", 4)
            await eventually(lambda: len(hooked.taken()) >= 4)
            assert second.deliveries.is_deliverer
            assert len(hooked.taken()) == 4, "a clean stop writes the place down"
            nats.restart()
            await second.tell("a", 5)
            await eventually(lambda: len(hooked.taken()) >= 5)
    assert by_entity(hooked.taken()) == {"a": [1, 2, 3, 4, 5]}


@pytest.mark.asyncio
async def test_a_webhook_whose_reading_breaks_begins_again(
    nats: NatsServer, hooked: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.gateway.app.deliveries.STORE_RETRY_S", 0.01)
    async with world(nats) as made:
        read, broken = made.bus.facts, [True]

        def facts(subjects: Any, *, after: int) -> Any:
            if broken.pop() if broken else False:
                raise RuntimeError("a mistake")
            return read(subjects, after=after)

        monkeypatch.setattr(made.bus, "facts", facts)
        await made.store.create(hook_to(hooked))
        made.deliveries.wake()
        await made.tell("ads", 1)
        await eventually(lambda: hooked.came)
    assert not broken


@pytest.mark.asyncio
async def test_only_events_of_the_namespaces_are_sent(nats: NatsServer, hooked: Receiver) -> None:
    async with world(nats, jobs={"a": "ads", "s": "shop"}) as made:
        await made.store.create(hook_to(hooked, namespaces=("ads",)))
        made.deliveries.wake()
        for number in range(3):
            for entity in ("a", "s", "gone"):
                await made.tell(entity, number)
        await eventually(lambda: len(hooked.taken()) == 3)
        await asyncio.sleep(0.1)
    assert by_entity(hooked.came) == {"a": [0, 1, 2]}


@pytest.mark.asyncio
async def test_a_job_s_namespace_is_asked_for_once() -> None:
    asked: list[str] = []

    async def job(job_id: str) -> dict[str, Any]:
        asked.append(job_id)
        return {"spec": None}

    known = Namespaces(job)
    event = Event(catalog.JOB_PROGRESSED, "a", catalog.JobProgressed(samples=1))
    assert [await known.of(event) for _ in range(3)] == ["", "", ""]
    assert asked == ["a"]


@pytest.mark.asyncio
async def test_a_private_address_is_not_reached_and_a_redirect_is_not_followed(hooked: Receiver) -> None:
    closed, open_ = Poster(allowed=(), tls=trust("")), Poster(allowed=networks("127.0.0.0/8"), tls=trust(""))
    try:
        refused = await closed.post(hooked.url, {}, b"x")
        assert "not public" in refused.error and not hooked.came
        hooked.answer = lambda headers, body: 307
        assert (await open_.post(hooked.url, {}, b"x")).status == 307
        assert len(hooked.came) == 1
        slow = threading.Event()
        hooked.answer = lambda headers, body: 200 if slow.wait(5.0) else 500
        hurried = Poster(allowed=networks("127.0.0.0/8"), tls=trust(""), attempt_s=0.2)
        assert "no answer within 0.2 s" in (await hurried.post(hooked.url, {}, b"x")).error
        await hurried.close()
        slow.set()
    finally:
        await closed.close()
        await open_.close()


@pytest.mark.asyncio
async def test_a_receiver_s_certificate_must_be_of_its_name(tmp_path: Path) -> None:
    tls = certificates(tmp_path)
    with receiver(tls) as secure:
        poster = Poster(allowed=networks("127.0.0.0/8, ::1"), tls=trust(str(tls.ca)))
        stranger = Poster(allowed=networks("127.0.0.0/8, ::1"), tls=trust(""))
        try:
            url = secure.url.replace("http://127.0.0.1", "https://localhost")
            assert (await poster.post(url, {}, b"x")).status == 200
            assert secure.came[0].headers["host"] == f"localhost:{secure.port}"
            by_address = await poster.post(url.replace("localhost", "127.0.0.1"), {}, b"x")
            assert "CERTIFICATE_VERIFY_FAILED" in by_address.error
            assert "CERTIFICATE_VERIFY_FAILED" in (await stranger.post(url, {}, b"x")).error
        finally:
            await poster.close()
            await stranger.close()
    assert len(secure.came) == 1


def recmesh(service: Service, *arguments: str, code: int = 0) -> str:
    """The command line, against this gateway; in this process, which spares imports."""
    done = CliRunner().invoke(app, list(arguments), env={"RECMESH_URL": service.url})
    found = exit_code(done.exception) if isinstance(done.exception, MeshError) else done.exit_code
    assert found == code, done.output
    return done.output + (str(done.exception) if isinstance(done.exception, MeshError) else "")


async def published(nats: NatsServer, numbers: range) -> None:
    bus = Bus(nats.url, "jobmaster")
    await bus.start()
    for number in numbers:
        for entity in "ab":
            await bus.publish(Event(catalog.JOB_PROGRESSED, entity, catalog.JobProgressed(samples=number)))
    await bus.stop()


async def audit_of(nats: NatsServer) -> list[access.AuditRecorded]:
    """All that is in the audit's own stream."""
    bus = Bus(nats.url, "tests")
    await bus.start()
    place = Place(">", from_sequence=1)
    found = [decode(each.headers or {}, each.data).data
             async for each in follow(bus.link, "RECMESH_AUDIT", place, to_end=True)]  # fmt: skip
    await bus.stop()
    return found


@pytest.mark.long
def test_webhooks_outlive_kill_9_of_the_gateway_and_are_managed_by_the_command_line(
    tmp_path: Path, nats: NatsServer, hooked: Receiver
) -> None:
    service = Service(tmp_path, nats, RECMESH_GATEWAY_WEBHOOK_NETWORKS="127.0.0.0/8")
    with running(service), Client(service.url) as client:
        refused = recmesh(service, "webhook", "create", "x", "http://10.0.0.1/", "--type", "job.*", code=5)
        assert "not public" in refused
        made = json.loads(recmesh(service, "webhook", "create", "ci", hooked.url, "--type", "job.*", "--json"))
        assert "taken" not in made and made["secret"].startswith("whsec_")
        assert "HTTP 200" in recmesh(service, "webhook", "test", "ci")
        assert hooked.came[0].event["type"] == "dev.recmesh.webhook.tested.v1"
        assert hooked.came.pop().is_signed_with(made["secret"])

        asyncio.run(published(nats, range(3)))
        until(lambda: len(hooked.taken()) == 6)
        hooked.answer = lambda headers, body: 503
        asyncio.run(published(nats, range(3, 6)))
        until(lambda: len(hooked.came) > 6)
        until(lambda: client.webhook("ci")["delivery"]["state"] == "failing")
        assert "failing" in recmesh(service, "webhook", "list")
        assert "failing" in httpx.get(service.url).text
        rotated = client.rotate_webhook("ci")
        service.end(signal.SIGKILL)
        asyncio.run(published(nats, range(6, 9)))
        hooked.answer = lambda headers, body: 204
        service.start()
        until(lambda: service.answers("/readyz"), timeout_s=240.0)
        until(lambda: by_entity(hooked.taken()) == {"a": list(range(9)), "b": list(range(9))}, timeout_s=60.0)
        last = hooked.taken()[-1]
        assert last.is_signed_with(made["secret"]) and last.is_signed_with(rotated["secret"])
        metrics = httpx.get(f"{service.url}/metrics").text
        assert 'recmesh_gateway_webhook_events_total{outcome="delivered",webhook="ci"}' in metrics
        assert "None was given up" in recmesh(service, "webhook", "dead", "ci")
        until(lambda: client.webhook("ci")["delivery"]["waiting"] == 0, timeout_s=60.0)     # doubles, too
        hooked.answer = lambda headers, body: 413 if b'"samples":9' in body else 202
        asyncio.run(published(nats, range(9, 10)))
        until(lambda: len(client.webhook_dead_letters("ci")) == 2, timeout_s=60.0)
        assert "0 were taken; 2 are left" in recmesh(service, "webhook", "retry", "ci", code=1)
        hooked.answer = lambda headers, body: 202
        [first, second] = [each["id"] for each in client.webhook_dead_letters("ci")]
        assert "1 were taken." in recmesh(service, "webhook", "retry", "ci", second)
        assert [each["id"] for each in client.webhook_dead_letters("ci")] == [first]
        assert "1 were taken." in recmesh(service, "webhook", "retry", "ci")
        assert "None was given up" in recmesh(service, "webhook", "retry", "ci")
        assert by_entity(hooked.taken()) == {"a": list(range(10)), "b": list(range(10))}
        assert hooked.taken()[-1].is_signed_with(rotated["secret"])
        assert "sends job.transitioned to" in recmesh(service, "webhook", "change", "ci", "--type", "job.transitioned")
        count = len(hooked.came)
        asyncio.run(published(nats, range(10, 11)))
        assert "sends job.* to" in recmesh(service, "webhook", "change", "ci", "--type", "job.*")
        asyncio.run(published(nats, range(11, 12)))
        until(lambda: all(max(numbers) == 11 for numbers in by_entity(hooked.taken()).values()), timeout_s=60.0)
        assert len(hooked.came) > count
        assert "delivered  " in recmesh(service, "webhook", "get", "ci")
        assert "is deleted" in recmesh(service, "webhook", "delete", "ci")
        assert "no webhook ci" in recmesh(service, "webhook", "get", "ci", code=4)
        assert service.end(signal.SIGTERM) == 0
    told = [(each.verb, each.kind, each.object, each.outcome, each.actor) for each in asyncio.run(audit_of(nats))]
    assert told == [
        ("create", "webhook", "x", "refused", "anyone"), ("create", "webhook", "ci", "done", "anyone"),
        ("test", "webhook", "ci", "done", "anyone"), ("rotate", "webhook", "ci", "done", "anyone"),
        *[("retry", "webhook", "ci", "done", "anyone")] * 3, *[("change", "webhook", "ci", "done", "anyone")] * 2,
        ("delete", "webhook", "ci", "done", "anyone"),
    ]
