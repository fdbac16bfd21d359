"""Webhooks' use cases: make, list, show, try, give another secret, delete."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import InvalidArgument, NotFound, PermissionDenied, ResourceExhausted, Violation
from recmesh.runtime.events import Event, access
from services.gateway.app.ports import Document
from services.gateway.domain import signing
from services.gateway.domain import webhooks as rules
from services.gateway.domain.callers import ADMIN, Caller
from services.gateway.domain.webhooks import Answer, Mode, Record, Webhook
from services.gateway.peers.webhooks import Poster
from services.gateway.store.webhooks import WebhookStore
from services.gateway.wire import cloudevents

MAX_WEBHOOKS = 100
"""Each reads the bus for itself."""
SECRET_BYTES = 32
MAX_DEAD = 1000
"""Letters of a webhook that are looked at: its newest."""
MAX_RETRIED = 100
"""By one call, whose answer somebody waits for."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A webhook as somebody asks for it."""

    name: str
    url: str
    types: tuple[str, ...]
    namespaces: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    mode: Mode = "structured"
    description: str = ""
    secret: str = ""
    """Empty: one is made."""


CHANGED = ("url", "types", "namespaces", "jobs", "mode", "description")


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be another; None stays as it is."""

    url: str | None = None
    types: tuple[str, ...] | None = None
    namespaces: tuple[str, ...] | None = None
    jobs: tuple[str, ...] | None = None
    mode: Mode | None = None
    description: str | None = None
    resume: bool = False
    """Of one that was stopped: go on."""


@dataclass(frozen=True, slots=True)
class Letter:
    """An event that was given up."""

    event: Event[Any]
    reason: str
    at: float
    attempts: int

    def document(self) -> Document:
        """As REST shows it."""
        return {
            "id": self.event.id, "source": self.event.source, "type": self.event.type.name,
            "subject": self.event.entity_id, "time": self.event.time, "data": self.event.data.model_dump(mode="json"),
            "reason": self.reason, "at": self.at, "attempts": self.attempts,
        }


@dataclass(frozen=True, slots=True)
class Retried:
    """What came of dead letters that were sent again."""

    taken: tuple[str, ...]
    """Ids of events, which are dead letters no more."""
    left: int
    """Of those that were asked for: not sent, or not taken."""
    answer: str = ""
    """Of the one that was not taken, after which none was sent; empty: all were."""
    failed: str = ""
    """The id of that one."""


class Webhooks:
    """A caller with namespaces makes webhooks for them alone, and sees no others."""

    def __init__(
        self, store: WebhookStore, poster: Poster, *, clock: Clock, random_bytes: Callable[[int], bytes],
        newest: Callable[[], Awaitable[int]], records: Callable[[], dict[str, Record]],
        dead: Callable[[str, int], Awaitable[list[Letter]]], changed: Callable[[], None],
    ) -> None:
        """`newest`: the bus's newest event; `records`: of the webhooks that this gateway delivers to; `dead`: a
        webhook's newest dead letters; `changed`: webhooks are to be looked at again."""
        self._store = store
        self._poster = poster
        self._clock = clock
        self._random_bytes = random_bytes
        self._newest = newest
        self._records = records
        self._dead = dead
        self._changed = changed

    async def create(self, wanted: Wanted, caller: Caller) -> tuple[Webhook, str]:
        """The webhook, which is told of what happens from now on, and its secret. AlreadyExists; InvalidArgument names
        every wrong field; PermissionDenied: the namespaces are others', or the address is not to be reached."""
        _check_namespaces(wanted.namespaces, caller)
        hook = Webhook(
            wanted.name, wanted.url, wanted.types, wanted.secret or self._new_secret(), wanted.namespaces, wanted.jobs,
            wanted.mode, wanted.description, created=self._clock.now(), owner=caller.name,
            sees_people=ADMIN in caller.scopes,
        )  # fmt: skip
        rules.check(hook)
        await self._poster.check(hook.url)
        if len(await self._store.names()) >= MAX_WEBHOOKS:
            raise ResourceExhausted(f"there are {MAX_WEBHOOKS} webhooks already", reason="TOO_MANY_WEBHOOKS")
        hook = replace(hook, after=await self._newest())
        await self._store.create(hook)
        self._changed()
        return hook, hook.secret

    async def list(self, caller: Caller) -> list[Document]:
        """Those that the caller may see, by name."""
        return [
            await self._document(hook) for hook in await self._store.all() if rules.sees(_confined(caller), hook)
        ]

    async def get(self, name: str, caller: Caller) -> Document:
        """One; NotFound, also for what the caller may not see."""
        return await self._document(await self._seen(name, caller))

    async def delete(self, name: str, caller: Caller) -> None:
        """Nothing is sent any more, once what is under way has ended."""
        await self._seen(name, caller)
        await self._store.delete(name)
        self._changed()

    async def rotate(self, name: str, secret: str, caller: Caller) -> tuple[Webhook, str]:
        """Another secret (empty: one is made), and the one before for a day beside it."""
        await self._seen(name, caller)
        chosen = secret or self._new_secret()
        signing.key_of(chosen)
        now = self._clock.now()
        hook = await self._store.change(name, lambda before: before.rotated(chosen, now))
        self._changed()
        return hook, chosen

    async def test(self, name: str, caller: Caller) -> Answer:
        """Send `webhook.tested` once, signed as all else; what was answered."""
        hook = await self._seen(name, caller)
        data = access.WebhookTested(webhook=name, by=caller.name)
        event = Event(access.WEBHOOK_TESTED, name, data, time=self._clock.now(), source="/recmesh/gateway")
        return await send(self._poster, hook, event, sequence=0, now=self._clock.now())

    async def change(self, name: str, wanted: Change, caller: Caller) -> Webhook:
        """Other wishes; what is None stays. It goes on from where it is, and one that was stopped goes on, too, if that
        is asked for. The same refusals as at its making."""
        seen = await self._seen(name, caller)
        if wanted.namespaces is not None:
            _check_namespaces(wanted.namespaces, caller)
        given = {field: getattr(wanted, field) for field in CHANGED if getattr(wanted, field) is not None}

        def changed(before: Webhook) -> Webhook:
            sees = before.sees_people and ADMIN in caller.scopes    # else who may not would read what people did
            return replace(before, **given, sees_people=sees, disabled="" if wanted.resume else before.disabled)

        rules.check(changed(seen))
        await self._poster.check(changed(seen).url)
        hook = await self._store.change(name, changed)
        self._changed()
        return hook

    async def dead_letters(self, name: str, limit: int, caller: Caller) -> "Sequence[Document]":
        """Events that were given up and not taken since, with the reason, oldest first: the newest `limit`."""
        hook = await self._seen(name, caller)
        return [letter.document() for letter in await self._letters(hook, limit)]

    async def retry(self, name: str, ids: Sequence[str], caller: Caller) -> Retried:
        """Send dead letters again, oldest first, with the ids that they had: those named, or all (`MAX_RETRIED` at
        once). The first that is not taken ends it: its receiver is to be mended first. NotFound names ids that are
        none."""
        hook = await self._seen(name, caller)
        if len(ids) > MAX_RETRIED:
            raise InvalidArgument(
                f"{len(ids)} events are too many", violations=[Violation("ids", f"has more than {MAX_RETRIED} entries")]
            )
        letters = await self._letters(hook, MAX_DEAD)
        unknown = sorted(set(ids) - {letter.event.id for letter in letters})
        if unknown:
            raise NotFound(f"no dead letter of webhook {name} is {', '.join(unknown)}", reason="UNKNOWN_EVENT")
        chosen = [letter for letter in letters if not ids or letter.event.id in ids][:MAX_RETRIED]
        taken: list[str] = []
        answer = Answer()
        for letter in chosen:
            answer = await send(self._poster, hook, letter.event, sequence=0, now=self._clock.now())
            if not answer.is_taken:
                break
            taken.append(letter.event.id)
        if taken:
            await self._store.note_taken(hook, taken, most=MAX_DEAD)
        asked = len(ids) or len(letters)
        if len(taken) == len(chosen):
            return Retried(tuple(taken), asked - len(taken))
        return Retried(tuple(taken), asked - len(taken), str(answer), chosen[len(taken)].event.id)

    async def _letters(self, hook: Webhook, limit: int) -> Sequence[Letter]:
        taken = await self._store.taken(hook)
        letters = await self._dead(durable_of(hook.name), MAX_DEAD if taken else limit)
        return [letter for letter in letters if letter.event.id not in taken][-limit:]

    async def _seen(self, name: str, caller: Caller) -> Webhook:
        hook = await self._store.get(name)
        if not rules.sees(_confined(caller), hook):
            raise NotFound(f"there is no webhook {name}", reason="UNKNOWN_WEBHOOK")
        return hook

    async def _document(self, hook: Webhook) -> Document:
        mine = self._records().get(hook.name)
        state: dict[str, Any] = mine.document() if mine is not None else await self._store.state(hook.name)
        return {**hook.document(), "delivery": state or Record().document()}

    def _new_secret(self) -> str:
        return signing.secret_of(self._random_bytes(SECRET_BYTES))


async def send(poster: Poster, hook: Webhook, event: Event[Any], *, sequence: int, now: float) -> Answer:
    """One attempt, signed at `now`."""
    headers, body = cloudevents.request(event, hook.mode, sequence=sequence)
    signed = signing.headers(
        hook.secrets(now), id=signing.message_id(event.source, event.id), timestamp=int(now), body=body
    )
    return await poster.post(hook.url, {**headers, **signed}, body)


def durable_of(name: str) -> str:
    """What its dead letters are kept under."""
    return f"webhook-{name}"


def _confined(caller: Caller) -> Sequence[str]:
    return () if ADMIN in caller.scopes else caller.namespaces


def _check_namespaces(wanted: Sequence[str], caller: Caller) -> None:
    own = _confined(caller)
    if own and (not wanted or not set(wanted) <= set(own)):
        raise PermissionDenied(
            f"{caller.name} may make webhooks for the namespaces {', '.join(own)} alone: name some of them in "
            "`namespaces`", reason="WRONG_NAMESPACE",
        )
