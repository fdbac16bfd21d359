"""Webhooks' use cases: make, list, show, try, give another secret, delete."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import NotFound, PermissionDenied, ResourceExhausted
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


class Webhooks:
    """A caller with namespaces makes webhooks for them alone, and sees no others."""

    def __init__(
        self, store: WebhookStore, poster: Poster, *, clock: Clock, random_bytes: Callable[[int], bytes],
        newest: Callable[[], Awaitable[int]], records: Callable[[], dict[str, Record]],
        dead: Callable[[str, int], Awaitable[list[Document]]], changed: Callable[[], None],
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

    async def dead_letters(self, name: str, limit: int, caller: Caller) -> "Sequence[Document]":
        """Events that were given up, with the reason, oldest first: the newest `limit`."""
        await self._seen(name, caller)
        return await self._dead(durable_of(name), limit)

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
