"""Webhooks, how far each is, and what was last seen of it, in a key-value bucket; and the lease of who delivers."""

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import Aborted, AlreadyExists, DataLoss, MeshError, NotFound
from recmesh.runtime.telemetry import get_logger
from services.gateway.domain.webhooks import Webhook, parse, stored
from services.gateway.store.registry import KeyValue

BUCKET = "recmesh-webhooks"
LEASE_BUCKET = "recmesh-webhook-lease"
LEASE_TTL_S = 8.0
ATTEMPTS = 8

_HOOK, _PLACE, _STATE, _TAKEN = "hook.", "place.", "state.", "taken."
DELIVERER, OBJECTS = "deliverer", "objects"
"""What a lease may be of: sending to webhooks, telling of objects of Kubernetes."""
_log = get_logger(__name__)


class WebhookStore:
    """All webhooks of the mesh."""

    def __init__(self, bucket: KeyValue) -> None:
        self._bucket = bucket

    async def names(self) -> Sequence[str]:
        """Sorted."""
        return [key.removeprefix(_HOOK) for key in await self._bucket.keys(_HOOK)]

    async def all(self) -> list[Webhook]:
        """By name. One that cannot be read is told of, and left out: the others go on."""
        found = []
        for name in await self.names():
            try:
                found.append(await self.get(name))
            except NotFound:                     # deleted meanwhile
                continue
            except DataLoss as error:
                _log.error("%s", error)
        return found

    async def get(self, name: str) -> Webhook:
        """One; NotFound."""
        return (await self._read(name))[0]

    async def create(self, hook: Webhook) -> None:
        """AlreadyExists when the name is taken: how far that one is stays as it was. A place that an earlier one of the
        name has left is known by when it was made."""
        try:
            await self._bucket.create(_HOOK + hook.name, orjson.dumps(stored(hook)))
        except AlreadyExists:
            raise AlreadyExists(f"there is a webhook {hook.name} already", reason="WEBHOOK_EXISTS") from None
        await self._bucket.delete(_STATE + hook.name)

    async def change(self, name: str, rule: Callable[[Webhook], Webhook]) -> Webhook:
        """Apply a rule by compare-and-set; NotFound."""
        for _ in range(ATTEMPTS):
            before, revision = await self._read(name)
            after = rule(before)
            try:
                await self._bucket.update(_HOOK + name, orjson.dumps(stored(after)), revision)
                return after
            except Aborted:
                continue
        raise Aborted(f"webhook {name} is changed by others all the time", reason="CONTENTION")

    async def delete(self, name: str) -> None:
        """Forget it, and how far it was; NotFound."""
        await self.get(name)
        for key in (_HOOK, _PLACE, _STATE, _TAKEN):
            await self._bucket.delete(key + name)

    async def place(self, hook: Webhook) -> int:
        """The sequence up to which all events are settled."""
        entry = await self._bucket.get(_PLACE + hook.name)
        text = entry.value.decode() if entry is not None else ""
        created, _, sequence = text.partition(" ")
        return int(sequence) if created == f"{hook.created:.6f}" else hook.after

    async def save_place(self, hook: Webhook, sequence: int) -> None:
        """Of this very webhook: one of its name that is made later begins anew."""
        await _put(self._bucket, _PLACE + hook.name, f"{hook.created:.6f} {sequence}".encode())

    async def state(self, name: str) -> dict[str, Any]:
        """What the gateway that delivers has last told of it; empty: nothing."""
        entry = await self._bucket.get(_STATE + name)
        found: dict[str, Any] = orjson.loads(entry.value) if entry is not None else {}
        return found

    async def save_state(self, name: str, state: dict[str, Any]) -> None:
        """For other gateways, and after a restart."""
        await _put(self._bucket, _STATE + name, orjson.dumps(state))

    async def taken(self, hook: Webhook) -> frozenset[str]:
        """Ids of its dead letters that were sent again since, and taken."""
        entry = await self._bucket.get(_TAKEN + hook.name)
        found = orjson.loads(entry.value) if entry is not None else {}
        return frozenset(found["ids"]) if found.get("created") == hook.created else frozenset()

    async def note_taken(self, hook: Webhook, ids: Sequence[str], *, most: int) -> None:
        """Of this very webhook; the newest `most` are kept. Another's note may win: then a letter is listed again."""
        entry = await self._bucket.get(_TAKEN + hook.name)
        before = orjson.loads(entry.value) if entry is not None else {}
        known = before["ids"] if before.get("created") == hook.created else []
        kept = [each for each in known if each not in ids] + list(ids)
        await _put(
            self._bucket, _TAKEN + hook.name, orjson.dumps({"created": hook.created, "ids": kept[-most:]})
        )

    async def _read(self, name: str) -> tuple[Webhook, int]:
        entry = await self._bucket.get(_HOOK + name) if _is_key(name) else None
        if entry is None:
            raise NotFound(f"there is no webhook {name}", reason="UNKNOWN_WEBHOOK")
        try:
            return parse(orjson.loads(entry.value)), entry.revision
        except (KeyError, TypeError, ValueError) as error:
            raise DataLoss(f"webhook {name} cannot be read: {error}", reason="BAD_RECORD") from None


def _is_key(name: str) -> bool:
    return name.isascii() and name.replace("-", "").isalnum()


async def _put(bucket: KeyValue, key: str, value: bytes) -> None:
    """Write whatever is there; another writer's value may win, which only one of two deliverers sees."""
    entry = await bucket.get(key)
    try:
        if entry is None:
            await bucket.create(key, value)
        elif entry.value != value:
            await bucket.update(key, value, entry.revision)
    except (AlreadyExists, Aborted):
        _log.info("%s was written by another gateway meanwhile", key)


class Lease:
    """Held by the one gateway that delivers, or tells of objects. It is renewed at a third of its time, and given up
    where that fails for longer: then another may hold it, and what both send has one id."""

    def __init__(
        self, bucket: KeyValue, *, identity: str, clock: Clock, ttl_s: float = LEASE_TTL_S, key: str = DELIVERER
    ) -> None:
        self._bucket, self._key = bucket, key
        self._me = identity.encode()
        self._clock = clock
        self._revision = 0
        self._held_until = float("-inf")
        self.ttl_s = ttl_s

    @property
    def is_held(self) -> bool:
        """Whether it is this gateway."""
        return self._revision > 0 and self._clock.monotonic() < self._held_until

    async def step(self) -> bool:
        """Renew it, or try to get it; whether it is held now. Errors of the store leave it as it is for its time."""
        try:
            await self._renew(self._clock.monotonic())
        except MeshError as error:
            _log.warning("the lease of the %s cannot be renewed: %s", self._key, error.message)
        return self.is_held

    async def _renew(self, now: float) -> None:
        try:
            if self._revision:
                self._revision = await self._bucket.update(self._key, self._me, self._revision)
            else:
                self._revision = await self._bucket.create(self._key, self._me)
            self._held_until = now + self.ttl_s
        except (Aborted, AlreadyExists):
            entry = await self._bucket.get(self._key)
            mine = entry is not None and entry.value == self._me        # our own write, whose answer was lost
            self._revision = entry.revision if entry is not None and mine else 0

    async def give_up(self) -> None:
        """The next one need not wait."""
        if self._revision:
            revision, self._revision = self._revision, 0
            try:
                await self._bucket.delete(self._key, revision=revision)
            except MeshError as error:
                _log.info("the lease of the %s is left to expire: %s", self._key, error.message)
