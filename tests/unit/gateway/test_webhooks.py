"""Webhooks: signatures, addresses, filters, patience, and what the API shows of them."""

import re
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import orjson
import pytest

from recmesh.runtime.errors import AlreadyExists, InvalidArgument, NotFound, PermissionDenied
from recmesh.runtime.events import EVENTS, Event, access, catalog, serving
from services.gateway.app.access import Access
from services.gateway.app.webhooks import Change, Letter, Wanted, Webhooks
from services.gateway.domain import addresses, signing
from services.gateway.domain.callers import Caller
from services.gateway.domain.webhooks import Answer, Patience, Progress, Record, Webhook, check, parse, stored
from services.gateway.peers.webhooks import retry_after_s
from services.gateway.store.credentials import Credentials, Sources
from services.gateway.store.webhooks import WebhookStore
from services.gateway.wire import cloudevents
from tests.support.gateway import FakeBucket, FakeClock, gateway, http, webhooks_of
from tests.unit.gateway.test_access import bearer, keys_file

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
HOOK = Webhook("ci", "https://ci.example/x", ("job.*", "model.ready"), SECRET)
READY = Event(serving.MODEL_READY, "ads--ctr", serving.ModelReady(name="ads--ctr", version="1"), source="/gateway")
ENDED = Event(
    catalog.JOB_TRANSITIONED, "flights-1", catalog.JobTransitioned(from_phase="Running", to_phase="Succeeded"),
    id="e 1", time=1_700_000_000.25, source="/recmesh/jobmaster",
)


def test_a_signature_is_that_of_the_standard_s_own_libraries() -> None:
    found = signing.signature(
        SECRET, id="msg_p5jXN8AQM9LWM0D4loKWxJek", timestamp=1614265330, body=b'{"test": 2432232314}'
    )
    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_each_part_of_what_is_signed_counts() -> None:
    signed = signing.headers([SECRET], id="a", timestamp=1, body=b"b")["webhook-signature"]
    others = [
        signing.headers([SECRET], id="c", timestamp=1, body=b"b"),
        signing.headers([SECRET], id="a", timestamp=2, body=b"b"),
        signing.headers([SECRET], id="a", timestamp=1, body=b"c"),
        signing.headers([signing.secret_of(b"k" * 32)], id="a", timestamp=1, body=b"b"),
    ]
    assert signed not in [each["webhook-signature"] for each in others]
    assert "." not in signing.message_id("/recmesh/x", "job.1.transition")


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_MTIz", SECRET.removeprefix("whsec_"), "whsec_***", "whsec_é"])
def test_what_is_no_secret_is_refused(secret: str) -> None:
    with pytest.raises(InvalidArgument, match="secret"):
        signing.key_of(secret)


@pytest.mark.parametrize("address", [
    "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
    "255.255.255.255", "::1", "::", "fe80::1", "fc00::1", "fec0::1", "ff02::1", "::ffff:10.0.0.1",
    "::ffff:169.254.169.254", "64:ff9b::a00:1", "2002:7f00:1::",
])
def test_an_address_that_is_not_of_the_internet_is_refused_unless_it_is_allowed(address: str) -> None:
    assert not addresses.is_public(ip_address(address))
    with pytest.raises(PermissionDenied, match="not public") as caught:
        addresses.check("h.example", ["93.184.216.34", address], allowed=(), secure=True)
    assert caught.value.reason == "ADDRESS_REFUSED" and str(caught.value).startswith(f"h.example is {address}, which")
    allowed = addresses.networks(f"{addresses._inside(ip_address(address)) or address}")
    assert addresses.check("h.example", [address], allowed=allowed, secure=False) == address
    with pytest.raises(PermissionDenied, match=f"^{re.escape(address)} is an address"):
        addresses.check(address, [address], allowed=(), secure=True)


def test_without_tls_only_networks_that_are_named_are_reached() -> None:
    assert addresses.check("h", ["93.184.216.34"], allowed=(), secure=True) == "93.184.216.34"
    with pytest.raises(PermissionDenied, match="https"):
        addresses.check("h", ["93.184.216.34"], allowed=addresses.networks("10.0.0.0/8"), secure=False)


@pytest.mark.parametrize(("change", "path"), [
    ({"name": "Ci"}, "name"), ({"types": ()}, "types"), ({"types": ("job.submit",)}, "types[0]"),
    ({"types": ("job.*", "jbo.*")}, "types[1]"), ({"types": ("audit.*",)}, "types"), ({"jobs": ("",)}, "jobs[0]"),
    ({"jobs": ("a", "a")}, "jobs"), ({"namespaces": tuple("abcdefghij" * 7)}, "namespaces"),
    ({"secret": "x"}, "secret"), ({"namespaces": ("ads", "a--b")}, "namespaces[1]"),
    ({"url": "ftp://h/"}, "url"), ({"url": "https://u:p@h/"}, "url"), ({"url": "https://h/#x"}, "url"),
    ({"url": "https://h:x/"}, "url"), ({"url": "https:///x"}, "url"), ({"url": "https://h/ x"}, "url"),
])
def test_a_wrong_field_is_named(change: dict[str, Any], path: str) -> None:
    check(HOOK)
    with pytest.raises(InvalidArgument) as caught:
        check(replace(HOOK, **change))
    assert path in [item.path for item in caught.value.violations]


def test_who_did_what_is_told_to_those_alone_who_may_do_everything() -> None:
    entry = access.AuditRecorded(actor="a", verb="stop", kind="job", outcome="done", via="rest")
    event = Event(access.AUDIT_RECORDED, "flights-1", entry)
    for pattern in ("*", "audit.*"):
        assert not replace(HOOK, types=(pattern,)).wants(event, None)
        assert replace(HOOK, types=(pattern,), sees_people=True).wants(event, None)


def test_commands_and_rates_are_sent_to_nobody() -> None:
    every = replace(HOOK, types=("*",), sees_people=True)
    names = {kind.name for kind in every.kinds()}
    assert names.isdisjoint(kind.name for kind in EVENTS if kind.anyone)
    assert {"job.transitioned", "model.ready", "audit.recorded"} <= names


@pytest.mark.parametrize(("hook", "wants"), [
    (HOOK, (True, True)), (replace(HOOK, types=("job.*",)), (True, False)),
    (replace(HOOK, jobs=("flights-1",)), (True, False)), (replace(HOOK, jobs=("other",)), (False, False)),
    (replace(HOOK, namespaces=("ads",)), (False, True)), (replace(HOOK, namespaces=("shop",)), (False, False)),
])
def test_filters_by_type_job_and_namespace(hook: Webhook, wants: tuple[bool, bool]) -> None:
    assert (hook.wants(ENDED, ""), hook.wants(READY, "ads")) == wants


def test_subjects_of_jobs_and_types() -> None:
    assert replace(HOOK, jobs=("a.b",)).subjects() == ["recmesh.v1.*.*.*.a%2Eb"]
    assert "recmesh.v1.gateway.model.ready.*" in HOOK.subjects()
    assert len(set(HOOK.subjects())) == len(HOOK.subjects()), "NATS takes none that overlap"


def test_a_stored_webhook_is_read_again() -> None:
    hook = replace(HOOK, jobs=("j",), created=3.5, earlier_secret=SECRET, earlier_until=9.0)
    assert parse(orjson.loads(orjson.dumps(stored(hook)))) == hook


def test_pauses_grow_to_a_bound_and_follow_a_receiver_s_wish() -> None:
    patience = Patience(first_s=1.0, factor=4.0, most_s=900.0)
    assert [patience.pause_s(attempt, luck=0.5) for attempt in (1, 2, 3, 9, 500)] == [1, 4, 16, 900, 900]
    assert (patience.pause_s(1, luck=0.0), patience.pause_s(1, luck=1.0)) == (0.75, 1.25)
    assert patience.pause_s(1, luck=0.5, retry_after_s=60) == 60
    assert patience.pause_s(1, luck=0.5, retry_after_s=1e9) == 900
    assert retry_after_s("120", 0.0) == 120
    assert retry_after_s("Thu, 01 Jan 1970 00:02:00 GMT", 20.0) == 100
    assert retry_after_s("soon", 0.0) == retry_after_s("", 0.0) == 0


def test_the_place_is_before_the_first_that_is_not_settled() -> None:
    progress = Progress(10)
    for sequence in (12, 15, 19):
        progress.begin(sequence)
    progress.settle(15)
    assert (progress.floor, progress.waiting) == (11, 2)
    progress.settle(12)
    assert progress.floor == 18
    progress.settle(19)
    assert (progress.floor, progress.waiting) == (19, 0)


def test_a_record_tells_since_when_it_fails() -> None:
    record = Record()
    record.note(Answer(500, "no"), 5.0)
    record.note(Answer(error="refused"), 6.0)
    assert (record.document()["state"], record.failing_since, record.last) == ("failing", 5.0, "refused")
    record.note(Answer(204), 7.0)
    assert (record.document()["state"], record.failing_since, record.delivered) == ("ok", 0.0, 1)


def test_an_event_in_both_modes_of_http() -> None:
    headers, body = cloudevents.request(ENDED, "structured", sequence=7)
    assert headers == {"content-type": "application/cloudevents+json; charset=utf-8"}
    assert orjson.loads(body) == {
        "specversion": "1.0", "id": "e 1", "source": "/recmesh/jobmaster", "type": "dev.recmesh.job.transitioned.v1",
        "subject": "flights-1", "time": "2023-11-14T22:13:20.250000Z", "datacontenttype": "application/json",
        "sequence": "00000000000000000007",
        "data": {"from_phase": "Running", "to_phase": "Succeeded", "reason": "", "message": ""},
    }
    headers, body = cloudevents.request(ENDED, "binary", sequence=7)
    assert headers == {
        "ce-specversion": "1.0", "ce-id": "e%201", "ce-source": "/recmesh/jobmaster",
        "ce-type": "dev.recmesh.job.transitioned.v1", "ce-subject": "flights-1",
        "ce-time": "2023-11-14T22:13:20.250000Z", "content-type": "application/json",
        "ce-sequence": "00000000000000000007",
    }
    assert orjson.loads(body)["to_phase"] == "Succeeded"


BODY: dict[str, Any] = {"name": "ci", "url": "https://93.184.216.34/x", "types": ["job.*"]}


@pytest.mark.asyncio
async def test_the_secret_is_shown_once(tmp_path: Path) -> None:
    async with http(gateway(tmp_path)) as client:
        made = await client.post("/v1/webhooks", json=BODY)
        assert made.status_code == 201 and made.headers["location"] == "/v1/webhooks/ci"
        assert made.json()["secret"] == signing.secret_of(b"r" * 32)
        listed = (await client.get("/v1/webhooks")).json()["webhooks"]
        shown = (await client.get("/v1/webhooks/ci")).json()
        assert listed == [shown] and "secret" not in (await client.get("/v1/webhooks")).text
        assert shown["delivery"]["state"] == "idle"
        assert (await client.post("/v1/webhooks", json=BODY)).json()["reason"] == "WEBHOOK_EXISTS"
        assert "whsec" not in repr(replace(HOOK, earlier_secret=SECRET))
        rotated = await client.post("/v1/webhooks/ci:rotate", json={"secret": SECRET})
        assert rotated.json()["secret"] == SECRET
        assert (await client.get("/v1/webhooks/ci/dead?limit=3")).json() == {"events": []}
        assert (await client.delete("/v1/webhooks/ci")).status_code == 204
        assert (await client.get("/v1/webhooks/ci")).json()["reason"] == "UNKNOWN_WEBHOOK"


@pytest.mark.asyncio
@pytest.mark.parametrize(("change", "status", "reason"), [
    ({"url": "http://127.0.0.1:9/x"}, 403, "ADDRESS_REFUSED"), ({"url": "https://localhost/x"}, 403, "ADDRESS_REFUSED"),
    ({"url": "http://93.184.216.34/x"}, 403, "ADDRESS_REFUSED"), ({"types": ["x.y"]}, 400, "BAD_WEBHOOK"),
    ({"mode": "loud"}, 400, "INVALID_REQUEST"), ({"secret": "short"}, 400, "BAD_WEBHOOK"),
    ({"url": "https://xn--a.localhost/x"}, 400, "BAD_WEBHOOK"),
])
async def test_a_webhook_that_cannot_be_is_refused(
    tmp_path: Path, change: dict[str, Any], status: int, reason: str
) -> None:
    async with http(gateway(tmp_path)) as client:
        answer = await client.post("/v1/webhooks", json=BODY | change)
        assert (answer.status_code, answer.json()["reason"]) == (status, reason), answer.text
        assert (await client.get("/v1/webhooks")).json() == {"webhooks": []}


@pytest.mark.asyncio
async def test_a_name_that_is_taken_leaves_how_far_its_webhook_is() -> None:
    store = WebhookStore(FakeBucket())
    first = replace(HOOK, created=1.0, after=3)
    await store.create(first)
    await store.save_place(first, 9)
    await store.save_state("ci", {"delivered": 6})
    with pytest.raises(AlreadyExists):
        await store.create(replace(HOOK, created=2.0, after=8))
    assert (await store.place(first), await store.state("ci")) == (9, {"delivered": 6})
    await store.delete("ci")
    await store.save_place(first, 10)                       # by a deliverer that has not heard of it yet
    await store.create(again := replace(HOOK, created=2.0, after=8))
    assert (await store.place(again), await store.state("ci")) == (8, {})


@pytest.mark.asyncio
async def test_a_caller_with_namespaces_makes_and_sees_webhooks_of_them_alone(tmp_path: Path) -> None:
    made = gateway(tmp_path)
    hooks = webhooks_of(made)
    ads, shop = (Caller(name, frozenset({"jobs"}), namespaces=(name,)) for name in ("ads", "shop"))
    wanted = Wanted("ci", BODY["url"], ("job.*",))
    for namespaces in ((), ("shop",), ("ads", "shop")):
        with pytest.raises(PermissionDenied, match="the namespaces ads alone"):
            await hooks.create(replace(wanted, namespaces=namespaces), ads)
    await hooks.create(replace(wanted, namespaces=("ads",)), ads)
    await hooks.create(replace(wanted, name="all"), Caller("root"))
    assert [each["name"] for each in await hooks.list(ads)] == ["ci"]
    assert await hooks.list(shop) == []
    assert [each["name"] for each in await hooks.list(Caller("root"))] == ["all", "ci"]
    for name, caller in (("ci", shop), ("all", ads)):
        for call in (hooks.get(name, caller), hooks.delete(name, caller), hooks.test(name, caller),
                     hooks.rotate(name, "", caller), hooks.dead_letters(name, 1, caller),
                     hooks.retry(name, (), caller), hooks.change(name, Change(), caller)):  # fmt: skip
            with pytest.raises(NotFound, match=f"there is no webhook {name}"):
                await call


@pytest.mark.asyncio
async def test_a_key_for_inference_alone_makes_no_webhooks(tmp_path: Path) -> None:
    allowed = Access(Credentials(Sources(keys_file=keys_file(tmp_path))), clock=FakeClock())
    async with http(gateway(tmp_path), access=allowed) as client:
        assert (await client.post("/v1/webhooks", json=BODY, headers=bearer("r"))).json()["reason"] == "NO_SCOPE"
        refused = await client.post("/v1/webhooks", json=BODY, headers=bearer("p"))
        assert refused.json()["reason"] == "WRONG_NAMESPACE"


# -- dead letters again, and other wishes -----------------------------------------------------------------


class FakePoster:
    """Takes what it is told to."""

    def __init__(self, *answers: int) -> None:
        self.answers = list(answers)
        self.came: list[str] = []
        """Ids of what was posted."""
        self.urls: list[str] = []

    async def check(self, url: str) -> None:
        self.urls.append(url)

    async def post(self, url: str, headers: dict[str, str], body: bytes) -> Answer:
        self.came.append(orjson.loads(body)["id"])
        return Answer(status=self.answers.pop(0) if self.answers else 200)


def letter(number: int) -> Letter:
    event = Event(
        catalog.JOB_PROGRESSED, "flights-1", catalog.JobProgressed(samples=number), id=f"e{number}", time=float(number)
    )
    return Letter(event, "HTTP 503", 100.0 + number, 9)


ROOT = Caller("root", frozenset({"admin"}))


async def retried(made: Any, poster: FakePoster, count: int) -> Webhooks:
    hooks = webhooks_of(made, poster=poster, letters=[letter(number) for number in range(count)])
    await hooks.create(Wanted("ci", BODY["url"], ("job.*",)), ROOT)
    return hooks


@pytest.mark.asyncio
async def test_dead_letters_are_sent_again_oldest_first_until_one_is_not_taken(tmp_path: Path) -> None:
    poster = FakePoster(200, 204, 503)
    hooks = await retried(gateway(tmp_path), poster, 4)
    found = await hooks.retry("ci", (), ROOT)
    assert poster.came == ["e0", "e1", "e2"], "with the ids that they had"
    assert (found.taken, found.left, found.failed, found.answer) == (("e0", "e1"), 2, "e2", "HTTP 503")
    assert [each["id"] for each in await hooks.dead_letters("ci", 10, ROOT)] == ["e2", "e3"]
    again = await hooks.retry("ci", (), ROOT)
    assert (again.taken, again.left, again.answer) == (("e2", "e3"), 0, "")
    assert await hooks.dead_letters("ci", 10, ROOT) == []


@pytest.mark.asyncio
async def test_named_dead_letters_alone_are_sent_again_and_what_is_none_is_named(tmp_path: Path) -> None:
    poster = FakePoster()
    hooks = await retried(gateway(tmp_path), poster, 3)
    assert (await hooks.retry("ci", ("e1",), ROOT)).taken == ("e1",) and poster.came == ["e1"]
    for ids in (("e1",), ("e0", "other")):
        with pytest.raises(NotFound, match=f"no dead letter of webhook ci is {ids[-1]}"):
            await hooks.retry("ci", ids, ROOT)
    assert poster.came == ["e1"], "nothing of a call that names what is none"


@pytest.mark.asyncio
async def test_one_call_sends_a_hundred_at_most(tmp_path: Path) -> None:
    poster = FakePoster()
    hooks = await retried(gateway(tmp_path), poster, 130)
    found = await hooks.retry("ci", (), ROOT)
    assert (len(found.taken), found.left) == (100, 30)
    with pytest.raises(InvalidArgument, match="too many"):
        await hooks.retry("ci", [f"e{number}" for number in range(101)], ROOT)


@pytest.mark.asyncio
async def test_a_webhook_that_is_made_anew_has_its_dead_letters_again(tmp_path: Path) -> None:
    made = gateway(tmp_path)
    hooks = await retried(made, FakePoster(), 2)
    await hooks.retry("ci", (), ROOT)
    await hooks.delete("ci", ROOT)
    made.clock.time += 1.0
    await hooks.create(Wanted("ci", BODY["url"], ("job.*",)), ROOT)
    assert [each["id"] for each in await hooks.dead_letters("ci", 10, ROOT)] == ["e0", "e1"]


@pytest.mark.asyncio
async def test_a_webhook_is_changed_where_it_is_and_by_the_rules_of_its_making(tmp_path: Path) -> None:
    async with http(gateway(tmp_path)) as client:
        made = (await client.post("/v1/webhooks", json=BODY)).json()
        changed = await client.patch("/v1/webhooks/ci", json={"types": ["model.*"], "jobs": ["a"], "mode": "binary"})
        assert changed.status_code == 200 and "secret" not in changed.text
        shown = (await client.get("/v1/webhooks/ci")).json()
        assert (shown["types"], shown["jobs"], shown["mode"]) == (["model.*"], ["a"], "binary")
        assert shown["url"] == BODY["url"]
        assert shown["created"] == made["created"]
        for body, reason in (
            ({"url": "http://127.0.0.1:9/x"}, "ADDRESS_REFUSED"), ({"types": ["x.y"]}, "BAD_WEBHOOK"),
            ({"name": "other"}, "INVALID_REQUEST"), ({"secret": "x"}, "INVALID_REQUEST"),
        ):  # fmt: skip
            assert (await client.patch("/v1/webhooks/ci", json=body)).json()["reason"] == reason
        assert (await client.patch("/v1/webhooks/other", json={})).status_code == 404
        assert (await client.get("/v1/webhooks/ci")).json() == shown, "what was refused changed nothing"


@pytest.mark.asyncio
async def test_who_changes_a_webhook_without_the_right_to_it_takes_what_people_did_out_of_it(tmp_path: Path) -> None:
    hooks = webhooks_of(gateway(tmp_path), poster=FakePoster())
    await hooks.create(Wanted("ci", BODY["url"], ("*",)), ROOT)
    hook = await hooks.change("ci", Change(url="https://93.184.216.34/mine"), Caller("jobs", frozenset({"jobs"})))
    assert not hook.sees_people and not {kind.name.partition(".")[0] for kind in hook.kinds()} & {"audit", "webhook"}


def test_a_delivery_begins_anew_where_more_than_secrets_and_words_is_another() -> None:
    assert HOOK.is_sent_as(replace(HOOK.rotated(SECRET, 5.0), description="other"))
    for change in ({"url": "https://h/"}, {"types": ("x",)}, {"jobs": ("a",)}, {"mode": "binary"}):
        assert not HOOK.is_sent_as(replace(HOOK, **change))
