"""The wire format of events. A change here breaks every reader that is not of the same version."""

from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from recmesh.runtime.contract import read
from recmesh.runtime.errors import InvalidArgument
from recmesh.runtime.events import EVENTS, Event, EventType, Payload, contract, decode, encode, token
from recmesh.runtime.events.asyncapi import document, text
from recmesh.runtime.events.catalog import JOB_SUBMITTED, JOB_TRANSITIONED, JobSubmitted, JobTransitioned

DOCUMENT = Path(__file__).parents[2] / "docs" / "asyncapi.yaml"
CONTRACT = DOCUMENT.parent / "formats" / "events.v1.txt"

GOLDEN = Event(
    JOB_TRANSITIONED, "flights.dcn 1",
    JobTransitioned(from_phase="Running", to_phase="Recovering", reason="PS_LOST", message="ps 0 – killed"),
    id="0123456789abcdef", time=1_700_000_000.25, source="/recmesh/jobmaster",
    traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
)
GOLDEN_HEADERS = {
    "ce-specversion": "1.0",
    "ce-id": "0123456789abcdef",
    "ce-source": "/recmesh/jobmaster",
    "ce-type": "dev.recmesh.job.transitioned.v1",
    "ce-subject": "flights.dcn%201",
    "ce-time": "2023-11-14T22:13:20.250000Z",
    "content-type": "application/json",
    "Nats-Msg-Id": "/recmesh/jobmaster/0123456789abcdef",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
}
GOLDEN_BODY = (
    b'{"from_phase":"Running","message":"ps 0 \xe2\x80\x93 killed","reason":"PS_LOST",'
    b'"to_phase":"Recovering"}'
)
GOLDEN_SUBJECT = "recmesh.v1.jobmaster.job.transitioned.flights%2Edcn%201"


def test_an_event_has_exactly_these_bytes() -> None:
    headers, body = encode(GOLDEN)
    assert headers == GOLDEN_HEADERS
    assert body == GOLDEN_BODY
    assert GOLDEN.subject == GOLDEN_SUBJECT


def test_these_bytes_are_the_event() -> None:
    assert decode(GOLDEN_HEADERS, GOLDEN_BODY) == GOLDEN


def test_a_field_that_a_newer_sender_added_is_ignored() -> None:
    body = orjson.dumps({**orjson.loads(GOLDEN_BODY), "invented_later": 1})
    assert decode(GOLDEN_HEADERS, body).data == GOLDEN.data


@pytest.mark.parametrize(("change", "path"), [
    ({"ce-type": ""}, "ce-type"),
    ({"ce-id": ""}, "ce-id"),
    ({"ce-specversion": "0.3"}, "ce-specversion"),
    ({"ce-type": "com.example.other"}, "ce-type"),
    ({"ce-time": "yesterday"}, "ce-time"),
])
def test_a_wrong_attribute_is_refused_by_its_name(change: dict[str, str], path: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        decode(GOLDEN_HEADERS | change, GOLDEN_BODY)
    assert [item.path for item in caught.value.violations] == [path]


@pytest.mark.parametrize("body", [b"", b"\xff\xfe", b"[1", b"null", b'{"from_phase": 3}'])
def test_a_body_that_is_no_payload_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidArgument, match=r"body|wrong data"):
        decode(GOLDEN_HEADERS, body)


@given(
    st.binary(max_size=200), st.dictionaries(st.sampled_from(sorted(GOLDEN_HEADERS)), st.text(max_size=30))
)
def test_any_bytes_are_an_event_or_refused_and_nothing_else(body: bytes, change: dict[str, str]) -> None:
    try:
        decode(GOLDEN_HEADERS | change, body)
    except InvalidArgument as error:
        assert error.violations


@given(st.text(min_size=1, max_size=60), st.text(max_size=60), st.floats(0, 4e9))
def test_every_id_and_text_survives_the_round_trip(entity_id: str, name: str, at: float) -> None:
    try:
        (entity_id + name).encode()
    except UnicodeEncodeError:
        return   # lone surrogates are no text
    event = Event(JOB_SUBMITTED, entity_id, JobSubmitted(name=name), time=round(at, 3), source="/recmesh/x")
    headers, body = encode(event)
    assert all(value.isascii() and value.isprintable() for value in headers.values())
    again = decode(headers, body)
    assert (again.entity_id, again.data, again.id) == (entity_id, event.data, event.id)
    assert abs(again.time - event.time) < 1e-3


@given(st.text(min_size=1, max_size=60).filter(lambda text: text.isprintable()))
def test_an_id_is_one_token_of_a_subject(entity_id: str) -> None:
    assert not set(token(entity_id)) & set(". *>\t\r\n")


def test_the_document_is_that_of_the_registry() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == text(), (
        "run: python -m recmesh.runtime.events.asyncapi docs/asyncapi.yaml"
    )


def test_the_document_has_a_channel_message_and_schema_for_every_event() -> None:
    written: dict[str, Any] = yaml.safe_load(DOCUMENT.read_text(encoding="utf-8"))
    assert set(written["channels"]) == {kind.name for kind in EVENTS}
    for kind in EVENTS:
        channel = written["channels"][kind.name]
        assert channel["address"] == (kind.address if kind.topic else kind.subject.removesuffix("*") + "{id}")
        assert kind.payload.__name__ in written["components"]["schemas"]
    assert all(_resolves(written, ref) for ref in _references(document()))

def test_readers_of_events_can_read_on() -> None:
    written = read(CONTRACT)
    assert written, f"run: {contract.COMMAND}"
    assert contract.broken(written, contract.lines()) == []
    assert contract.lines() == written, f"run: {contract.COMMAND}"


class Inner(Payload):
    """In another."""

    path: str


class Before(Payload):
    """As it was."""

    name: str
    share: float | None = None
    found: tuple[Inner, ...] = ()


class Larger(Before):
    """With more, which may be left out."""

    later: int = 0
    more: tuple[Inner, ...] = ()


class Demanding(Before):
    """With more, which senders one version older do not tell."""

    later: int


class Renamed(Payload):
    """One field is gone, one is another."""

    name: int
    found: tuple[Inner, ...] = ()


@pytest.mark.parametrize(("after", "breaks"), [
    (Before, []), (Larger, []), (Demanding, ["is new, and not optional: x.told later integer required"]),
    (Renamed, ["is gone, or another: x.told name string required",
               "is gone, or another: x.told share null|number optional"]),
])
def test_what_would_break_readers_is_named(after: type[Payload], breaks: list[str], tmp_path: Path) -> None:
    before = contract.lines([EventType("x.told", "gateway", Before, "")])
    assert "x.told found[].path string required" in before
    assert contract.broken(before, contract.lines([EventType("x.told", "gateway", after, "")])) == breaks
    moved = contract.broken(before, contract.lines([EventType("x.told", "brain", after, "")]))
    assert "is gone, or another: x.told @ recmesh.v1.gateway.x.told.{id}" in moved
    assert len(contract.broken(before, [])) == len(before)
    file = tmp_path / "contract.txt"
    file.write_text("x.gone name string required\n")
    assert contract.main(file) == 1 and file.read_text().startswith("x.gone")


def test_facts_are_in_the_past_tense() -> None:
    commands = {"job.submit", "job.stop", "job.suspend", "job.resume", "label.post", "model.register"}
    assert [kind.name for kind in EVENTS if kind.name not in commands and not _past(kind.name)] == []
    assert {kind.name for kind in EVENTS if kind.anyone} == commands | {"rate.observed", "rates.observed"}


def _past(name: str) -> bool:
    word = name.rsplit(".", 1)[1].rsplit("_", 1)[-1]
    return word.endswith("ed") or word in {"ready", "back"} or "rolled_back" in name


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        mine = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return mine + [ref for item in value.values() for ref in _references(item)]
    return [ref for item in value for ref in _references(item)] if isinstance(value, list) else []


def _resolves(root: Any, ref: str) -> bool:
    for part in ref.removeprefix("#/").split("/"):
        root = root.get(part) if isinstance(root, dict) else None
    return root is not None
