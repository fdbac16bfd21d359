"""What each user of NATS may do and may not, by a real server with the generated permissions."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import nats as client_library
import orjson
import pytest
from nats.aio.client import Client
from nats.js import api

from recmesh.runtime.bus import Bus, Link, permissions
from recmesh.runtime.bus.link import inbox
from recmesh.runtime.bus.stored import store
from recmesh.runtime.errors import Unauthenticated
from recmesh.runtime.events import EVENTS, Event, access, catalog
from services.gateway.events.trail import Trail
from tests.support.certificates import certificates
from tests.support.servers import NatsServer, nats_binary
from tests.support.service_process import service

pytestmark = pytest.mark.integration
SERVICES = sorted(permissions.NEEDS)
PASSWORD = "p4ss"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """With the streams of all services, as they are when a mesh runs."""
    names = {f"NATS_{user.upper()}_PASSWORD": PASSWORD for user in (*SERVICES, permissions.INTEGRATION)}
    folder = tmp_path_factory.mktemp("nats")
    made = NatsServer(folder, more=permissions.text(passwords=True))
    with mock.patch.dict(os.environ, names):
        made.start()
    try:
        asyncio.run(_make_all(made))
        yield made
    finally:
        made.kill()


def url(server: NatsServer, user: str) -> str:
    return server.url.replace("//", f"//{user}:{PASSWORD}@")


@asynccontextmanager
async def bus_of(server: NatsServer, user: str) -> AsyncIterator[Bus]:
    made = Bus(url(server, user), user)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def _nothing(_: Event[Any]) -> None:
    """Handles."""


async def _make_all(server: NatsServer) -> None:
    for user in SERVICES:
        async with bus_of(server, user) as bus:
            for bucket in permissions.NEEDS[user].buckets:
                await bus.kv(bucket).put("here", b"1")
                await bus.kv(bucket).delete("here")
            for durable in permissions.NEEDS[user].durables:
                consumer = bus.consume(durable, [catalog.JOB_SUBMIT], _nothing)
                await consumer.start()
                await consumer.stop()


@asynccontextmanager
async def raw(server: NatsServer, user: str) -> AsyncIterator[tuple[Client, list[str]]]:
    """A plain client, and what the server complains of."""
    complaints: list[str] = []

    async def complain(error: Exception) -> None:
        complaints.append(str(error).lower())

    made = await client_library.connect(
        url(server, user), error_cb=complain, allow_reconnect=False, inbox_prefix=inbox(user)
    )
    try:
        yield made, complaints
    finally:
        await made.close()


async def settled(client: Client) -> None:
    """The server has read all that was sent, and its complaints have come. Twice: a client's PING may overtake what it
    has in hand, and what comes before the second one's answer is after that."""
    for _ in range(2):
        await client.flush()


async def refused(server: NatsServer, user: str, subjects: list[str]) -> set[str]:
    """Those of the subjects that the user may not publish."""
    async with raw(server, user) as (client, complaints):
        for subject in subjects:
            await client.publish(subject, b"")
        await settled(client)
        return {each for each in subjects if any(f'"{each.lower()}"' in line for line in complaints)}


@pytest.mark.asyncio
@pytest.mark.parametrize("user", SERVICES)
async def test_a_service_does_all_that_it_needs(server: NatsServer, user: str) -> None:
    needs = permissions.NEEDS[user]
    async with bus_of(server, user) as bus:
        for kind in EVENTS:
            if kind.service == user and not kind.anyone and not kind.topic:
                assert await store(bus.link, kind.subject.replace("*", "x"), b"{}", message_id=kind.name) > 0
        for bucket in needs.buckets:
            keys = bus.kv(bucket)
            revision = await keys.put("k", b"1")
            entry = await keys.get("k")
            assert entry is not None and entry.value == b"1"
            assert "k" in await keys.keys()
            await keys.update("k", b"2", revision)
            await keys.delete("k")
        for name, root in needs.logs.items():
            log = bus.log(name, f"{root}.>")
            await log.append(f"{root}.j", b"1")
            assert [each async for _, each in log.read(f"{root}.j")] == [b"1"]
            await log.purge(f"{root}.j")
        for durable in needs.durables:
            handled = asyncio.Event()

            async def handle(event: Event[Any], handled: asyncio.Event = handled) -> None:
                handled.set()

            consumer = bus.consume(durable, [catalog.RATE_OBSERVED], handle)
            await consumer.start()
            rate = catalog.RateObserved(series="s", step_s=1, points=[])
            await bus.publish(Event(catalog.RATE_OBSERVED, "s", rate))
            async with asyncio.timeout(20):
                await handled.wait()
            await consumer.stop()
            again = bus.consume(durable, [catalog.JOB_SUBMIT], _nothing)         # as it was
            await again.start()
            await again.stop()
            event = Event(catalog.JOB_SUBMIT, "j", catalog.JobSubmit(spec={}), source="/x")
            await bus.bury(durable, event, reason="why", sequence=1, deliveries=1)
        micro = bus.service(user, "1", "about", dict)
        await micro.start()
        if needs.reads_events:
            assert [event.type.name async for _, event in bus.events(catalog.RATE_OBSERVED.subject, to_end=True)]
            await bus.bury("webhook-x", event_of_nothing(), reason="why", sequence=1, deliveries=1)
            assert [reason async for _, reason, _, _ in bus.buried("webhook-x")] == ["why"]
            await Trail(bus, days=1).start()


def event_of_nothing() -> Event[access.WebhookTested]:
    return Event(access.WEBHOOK_TESTED, "x", access.WebhookTested(webhook="x"), source="/x")


@pytest.mark.asyncio
@pytest.mark.parametrize("user", SERVICES)
async def test_a_service_may_not_do_what_is_another_s(server: NatsServer, user: str) -> None:
    others = [name for name in SERVICES if name != user]
    subjects = ["recmesh.v1.jobmaster.job.submit.x", "recmesh.v1.jobmaster.job.stop.x",
                "recmesh.v1.gateway.label.post.x", "recmesh.v1.gateway.model.register.x",
                "$JS.API.STREAM.DELETE.RECMESH", "$JS.API.STREAM.PURGE.RECMESH",
                "$JS.API.STREAM.MSG.DELETE.RECMESH", "$SYS.REQ.SERVER.PING", "anything"]  # fmt: skip
    for kind in EVENTS:
        told = kind.anyone or kind.topic or kind.subject in permissions.NEEDS[user].tells
        if kind.service in others and not told:
            subjects.append(kind.subject.replace("*", "x"))
    for other in others:
        needs = permissions.NEEDS[other]
        for bucket in needs.buckets:
            subjects += [f"$KV.{bucket}.here", f"$JS.API.STREAM.DELETE.KV_{bucket}",
                         f"$JS.API.STREAM.UPDATE.KV_{bucket}", f"$JS.API.STREAM.MSG.GET.KV_{bucket}",
                         f"$JS.API.CONSUMER.CREATE.KV_{bucket}.x"]  # fmt: skip
        for root in needs.logs.values():
            subjects.append(f"{root}.j")
        for durable in needs.durables:
            subjects += [f"$JS.API.CONSUMER.{verb}.RECMESH.{durable}" for verb in
                         ("CREATE", "DURABLE.CREATE", "DELETE", "MSG.NEXT")]  # fmt: skip
            subjects.append(f"$JS.ACK.RECMESH.{durable}.1.1.1.1.1")
    assert await refused(server, user, subjects) == set(subjects)


@pytest.mark.asyncio
async def test_an_integration_sends_commands_and_reads_events_and_tells_no_facts(server: NatsServer) -> None:
    user = permissions.INTEGRATION
    commands = [kind.subject.replace("*", "x") for kind in EVENTS if kind.anyone]
    assert await refused(server, user, commands) == set()
    facts = [kind.subject.replace("*", "x") for kind in EVENTS if not kind.anyone and not kind.topic]
    mighty = ["$KV.recmesh_jobs.here", "$JS.API.STREAM.DELETE.RECMESH",
              "$JS.API.CONSUMER.DELETE.RECMESH.jobmaster-submit", "$JS.API.CONSUMER.CREATE.RECMESH.jobmaster-submit",
              "$JS.API.CONSUMER.MSG.NEXT.RECMESH.jobmaster-submit",
              "$JS.ACK.RECMESH.jobmaster-submit.1.1.1.1.1", "recmesh.dead.x"]  # fmt: skip
    assert await refused(server, user, facts + mighty) == set(facts + mighty)
    async with raw(server, user) as (client, complaints):
        told = await client.jetstream().subscribe(
            "recmesh.v1.*.*.*.flights", config=api.ConsumerConfig(deliver_policy=api.DeliverPolicy.ALL)
        )
        async with bus_of(server, "jobmaster") as bus:
            await bus.publish(Event(catalog.JOB_SUBMITTED, "flights", catalog.JobSubmitted(name="flights")))
        message = await told.next_msg(timeout=20)
        assert orjson.loads(message.data)["name"] == "flights"
        await message.ack()
        assert complaints == []


@pytest.mark.asyncio
async def test_nobody_hears_replies_to_another(server: NatsServer) -> None:
    async with raw(server, "forecaster") as (client, complaints):
        for subject in (f"{inbox('jobmaster')}.>", "_INBOX.>", "recmesh.v1.>", "$KV.>", ">"):
            await client.subscribe(subject)
        await settled(client)
        assert len([line for line in complaints if "permissions violation" in line]) == 5


@pytest.mark.asyncio
async def test_who_is_nobody_is_let_do_nothing(server: NatsServer) -> None:
    strangers = ("", "gateway:wrong@", f"x:{PASSWORD}@")
    for wrong in (server.url.replace("//", f"//{each}") for each in strangers):
        with pytest.raises(Unauthenticated):
            await Link(wrong, name="gateway").open(1.0)


@pytest.mark.long
@pytest.mark.parametrize("name", ["gateway", "jobmaster", "forecaster"])
def test_a_real_service_becomes_ready_with_its_own_rights_alone(server: NatsServer, tmp_path: Path, name: str) -> None:
    env = {"RECMESH_NATS_URL": url(server, name), "RECMESH_DATABASE_URL": f"sqlite:///{tmp_path}/{name}.sqlite"}
    with service(name, tmp_path / name, env=env) as process:
        said = process.log_path.read_text()
        process.stop()
        assert "violation" not in (said + process.log_path.read_text()).lower()


@pytest.mark.asyncio
async def test_in_prod_a_user_is_who_its_certificate_says(tmp_path: Path) -> None:
    """The names of a certificate are `recmesh`, `localhost` and the service's, as of cert-manager's in the overlay."""
    tls = certificates(tmp_path, name="forecaster")
    more = (
        f'tls {{ cert_file: "{tls.cert}", key_file: "{tls.key}", ca_file: "{tls.ca}", verify_and_map: true }}\n'
        + permissions.text()
    )
    server = NatsServer(tmp_path / "nats", more=more)
    server.start()
    try:
        bus = Bus(server.url.replace("nats://127.0.0.1", "tls://localhost"), "forecaster", tls=tls)
        await bus.start()
        assert await store(bus.link, "recmesh.v1.forecaster.forecast.updated.x", b"{}", message_id="1") > 0

        async def complaints() -> str:
            await bus.link.send("recmesh.v1.jobmaster.job.submit.x", b"{}")
            await asyncio.sleep(0.3)
            return server.log_path.read_text()

        complaint = 'user:forecaster" - Publish Violation - Subject "recmesh.v1.jobmaster.job.submit.x"'
        assert complaint in await complaints()
        assert (await bus.last_sequence()) == 1
        await bus.stop()
    finally:
        server.kill()


def test_the_overlay_has_the_permissions_of_this_catalogue() -> None:
    written = (Path(__file__).parents[3] / "infra" / "overlays" / "prod" / "permissions.conf").read_text()
    assert written == permissions.text(), (
        "run: python -m recmesh.runtime.bus.permissions > infra/overlays/prod/permissions.conf"
    )
    assert nats_binary()
