"""Sending events to webhooks: in order for each entity, again and again until they are taken or given up.

Each webhook has its own place in the stream of events, kept in the store: the sequence up to which everything is
settled. Whoever delivers next, this process after a restart or another gateway, begins there, so nothing is left out;
what was settled behind the place is sent again, with the id that it had. Of one entity an event is sent when the one
before it is settled; of different entities several at once, `IN_FLIGHT` at most, and no more are read meanwhile: the
bus keeps the rest.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from recmesh.runtime import telemetry
from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import MeshError, NotFound
from recmesh.runtime.events import Event, access
from services.gateway.app.webhooks import durable_of, send
from services.gateway.domain.webhooks import (
    OF_JOBS,
    Answer,
    Patience,
    Progress,
    Record,
    Webhook,
    namespace_of_model,
)
from services.gateway.peers.webhooks import Poster
from services.gateway.store.webhooks import Lease, WebhookStore

IN_FLIGHT = 16
"""Events of one webhook that are read and not settled."""
LOOK_S = 2.0
SAVE_S = 0.5
KNOWN_JOBS = 4096
STORE_RETRY_S = 2.0

_log = telemetry.get_logger(__name__)
_metrics = telemetry.Metrics("gateway")
_attempts = _metrics.counter(
    "webhook_attempts", "Requests to webhooks, by what came of them: taken, failed", labels=("webhook", "outcome")
)
_settled = _metrics.counter(
    "webhook_events", "Events of webhooks that are settled: delivered, or dead", labels=("webhook", "outcome")
)
_seconds = _metrics.histogram("webhook_seconds", "Time of a request to a webhook")
_behind = _metrics.gauge("webhook_behind", "Stored events that a webhook has not read yet", labels=("webhook",))


class Events(Protocol):
    """What is needed of the bus."""

    def facts(self, subjects: Sequence[str], *, after: int) -> AsyncGenerator[tuple[int, Event[Any], int], None]:
        """Sequence, event, and how many more are stored."""
        ...

    async def last_sequence(self) -> int:
        """Of the newest event."""
        ...

    async def bury(self, durable: str, event: Event[Any], *, reason: str, sequence: int, deliveries: int) -> None:
        """Keep it among the dead letters."""
        ...

    async def publish(self, event: Event[Any], *, timeout_s: float | None = None) -> None:
        """Store an event."""
        ...


JobOf = Callable[[str], Awaitable[dict[str, Any]]]
"""A job by its id; NotFound."""


class Namespaces:
    """In which namespace models and jobs are."""

    def __init__(self, job: JobOf) -> None:
        self._job = job
        self._known: OrderedDict[str, str] = OrderedDict()

    async def of(self, event: Event[Any]) -> str | None:
        """None: neither a model's nor a job's, or of a job that is gone and was never asked for."""
        entity = event.type.name.partition(".")[0]
        if entity == "model":
            return namespace_of_model(event.entity_id)
        if entity not in OF_JOBS:
            return None
        job_id = event.entity_id
        if job_id in self._known:
            self._known.move_to_end(job_id)
            return self._known[job_id]
        try:
            spec = (await self._job(job_id)).get("spec") or {}
        except NotFound:
            return None
        export = spec.get("export") or {}
        self._known[job_id] = str(export.get("namespace") or "")
        if len(self._known) > KNOWN_JOBS:
            self._known.popitem(last=False)
        return self._known[job_id]


class Delivery:
    """One webhook's deliveries."""

    def __init__(
        self, hook: Webhook, events: Events, store: WebhookStore, poster: Poster, namespaces: Namespaces, *,
        clock: Clock, patience: Patience, luck: Callable[[], float],
    ) -> None:
        self.hook = hook
        """May be replaced by one that differs in secrets alone."""
        self.record = Record()
        self._events = events
        self._store = store
        self._poster = poster
        self._namespaces = namespaces
        self._clock = clock
        self._patience = patience
        self._luck = luck
        self._progress = Progress(hook.after)
        self._saved = -1
        self._room = asyncio.Semaphore(IN_FLIGHT)
        self._last: dict[str, asyncio.Task[None]] = {}
        """Of each entity, the event that was read last."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name=f"webhook {self.hook.name}")

    async def stop(self, *, save: bool) -> None:
        """End at once; what is under way is sent again by whoever goes on, from the place that is saved."""
        tasks = [each for each in (self._task, *self._last.values()) if each is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if save:
            with contextlib.suppress(MeshError):     # then some are sent twice
                await self.save()

    async def save(self) -> None:
        """Write down the place, where it changed."""
        if self._task is not None and self._progress.floor != self._saved:
            floor = self._progress.floor
            await self._store.save_place(self.hook, floor)
            self._saved = floor

    async def _run(self) -> None:
        while True:
            try:
                await self._read()
            except MeshError as error:
                _log.warning("webhook %s waits: %s", self.hook.name, error.message)
            except Exception:                    # whatever: it would be silent for ever, and nobody would know
                _log.exception("webhook %s begins again", self.hook.name)
            await self._clock.sleep(STORE_RETRY_S)

    async def _read(self) -> None:
        await self._settle_all()
        after = max(self._progress.floor, await self._store.place(self.hook))
        if after > await self._events.last_sequence():
            after = 0                            # the stream was made anew
        self._progress = Progress(after)
        async with aclosing(self._events.facts(self.hook.subjects(), after=after)) as facts:
            async for sequence, event, behind in facts:
                self.record.behind = behind
                _behind.labels(self.hook.name).set(behind)
                self._progress.begin(sequence)
                if not await self._is_wanted(event):
                    self._progress.settle(sequence)
                    continue
                await self._room.acquire()
                self.record.waiting = self._progress.waiting
                before = self._last.get(event.entity_id)
                task = asyncio.create_task(self._deliver(event, sequence, before), name=f"webhook {self.hook.name}")
                self._last[event.entity_id] = task
                task.add_done_callback(partial(self._ended, event.entity_id))

    async def _settle_all(self) -> None:
        """Reading begins again: what was read before ends first, or order would be lost."""
        if self._last:
            await asyncio.wait(list(self._last.values()))

    def _ended(self, entity: str, task: asyncio.Task[None]) -> None:
        self._room.release()
        if self._last.get(entity) is task:
            del self._last[entity]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("webhook %s: an event was left unsettled", self.hook.name, exc_info=error)

    async def _is_wanted(self, event: Event[Any]) -> bool:
        if not self.hook.wants(event, next(iter(self.hook.namespaces), None)):
            return False                         # whatever namespace it has
        while self.hook.namespaces:
            try:
                return self.hook.wants(event, await self._namespaces.of(event))
            except MeshError as error:
                _log.warning("webhook %s: the namespace of %s is not known: %s", self.hook.name, event.entity_id, error)
                await self._clock.sleep(STORE_RETRY_S)
        return True

    async def _deliver(self, event: Event[Any], sequence: int, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait({before})
        answer, attempts = await self._until_settled(event, sequence)
        if not answer.is_taken:
            await self._bury(event, sequence, answer, attempts)
        _settled.labels(self.hook.name, "delivered" if answer.is_taken else "dead").inc()
        self._progress.settle(sequence)
        self.record.waiting = self._progress.waiting

    async def _until_settled(self, event: Event[Any], sequence: int) -> tuple[Answer, int]:
        begun = self._clock.now()
        happened = event.time if 0 < event.time < begun else begun
        attempt = 0
        while True:
            attempt += 1
            answer = await send(self._poster, self.hook, event, sequence=sequence, now=self._clock.now())
            self.record.note(answer, self._clock.now())
            _attempts.labels(self.hook.name, "taken" if answer.is_taken else "failed").inc()
            _seconds.observe(answer.seconds)
            if answer.is_taken or answer.is_final:
                return answer, attempt
            if answer.is_gone:
                await self._disable(str(answer))
                return answer, attempt
            pause_s = self._patience.pause_s(attempt, luck=self._luck(), retry_after_s=answer.retry_after_s)
            if self._clock.now() + pause_s - happened > self._patience.give_up_s:
                return answer, attempt
            _log.info("webhook %s: %s; again in %.0f s", self.hook.name, answer, pause_s)
            await self._clock.sleep(pause_s)

    async def _bury(self, event: Event[Any], sequence: int, answer: Answer, attempts: int) -> None:
        while True:
            try:
                await self._events.bury(
                    durable_of(self.hook.name), event, reason=str(answer), sequence=sequence, deliveries=attempts
                )
                break
            except MeshError as error:
                _log.warning("webhook %s: a dead letter waits: %s", self.hook.name, error.message)
                await self._clock.sleep(STORE_RETRY_S)
        self.record.dead += 1
        _log.error("webhook %s: %s of %s is given up after %d attempts: %s", self.hook.name, event.type.name,
                   event.entity_id, attempts, answer)  # fmt: skip

    async def _disable(self, reason: str) -> None:
        try:
            await self._store.change(self.hook.name, lambda hook: replace(hook, disabled=hook.disabled or reason))
            data = access.WebhookDisabled(webhook=self.hook.name, reason=reason)
            await self._events.publish(Event(access.WEBHOOK_DISABLED, self.hook.name, data))
        except MeshError as error:
            _log.warning("webhook %s cannot be disabled now: %s", self.hook.name, error.message)


class Deliveries:
    """All webhooks' deliveries, by the one gateway that holds the lease."""

    name = "webhooks"

    def __init__(
        self, events: Events, store: WebhookStore, poster: Poster, lease: Lease, *, job: JobOf, clock: Clock,
        patience: Patience, luck: Callable[[], float],
    ) -> None:
        self._events = events
        self._store = store
        self._poster = poster
        self._lease = lease
        self._namespaces = Namespaces(job)
        self._clock = clock
        self._patience = patience
        self._luck = luck
        self._running: dict[str, Delivery] = {}
        self._woken = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self.hooks: Sequence[Webhook] = ()
        """As they were last read, whoever delivers."""

    @property
    def is_deliverer(self) -> bool:
        """Whether this gateway sends."""
        return self._lease.is_held

    def records(self) -> dict[str, Record]:
        """Of the webhooks that this gateway delivers to."""
        return {name: delivery.record for name, delivery in self._running.items()}

    def wake(self) -> None:
        """Webhooks have changed."""
        self._woken.set()

    async def start(self) -> None:
        """Begin; the first look is in the background."""
        self._looking = asyncio.create_task(self._look_always(), name=self.name)

    async def wait(self) -> None:
        """Raises what ended it."""
        assert self._looking is not None, "started"
        await asyncio.shield(self._looking)

    async def stop(self) -> None:
        """Each webhook's place is written down; what is under way is sent again by whoever goes on."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await self._end(list(self._running), save=True)
        await self._lease.give_up()
        await self._poster.close()

    async def _look_always(self) -> None:
        saved_at = looked_at = float("-inf")
        while True:
            now = self._clock.monotonic()
            try:
                if now - looked_at >= LOOK_S or self._woken.is_set():
                    self._woken.clear()
                    looked_at = now
                    await self._look()
                if now - saved_at >= SAVE_S:
                    saved_at = now
                    for delivery in list(self._running.values()):
                        await delivery.save()
            except MeshError as error:
                _log.warning("webhooks cannot be looked at: %s", error.message)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SAVE_S):
                    await self._woken.wait()

    async def _look(self) -> None:
        """Take or keep the lease, then bring what runs to what is wanted."""
        is_ours = await self._lease.step()
        if not is_ours:
            await self._end(list(self._running))
        self.hooks = await self._store.all()
        await self._poster.keep({hook.url for hook in self.hooks})
        if not is_ours:
            return
        wanted = {hook.name: hook for hook in self.hooks if not hook.disabled}
        gone = [
            name for name, delivery in self._running.items()
            if name not in wanted or wanted[name].created != delivery.hook.created
        ]
        await self._end(gone)
        others = [name for name, delivery in self._running.items() if not wanted[name].is_sent_as(delivery.hook)]
        await self._end(others, save=True)       # they go on from their place, by their new wishes
        for name, hook in wanted.items():
            if name in self._running:
                self._running[name].hook = hook
            else:
                self._running[name] = Delivery(
                    hook, self._events, self._store, self._poster, self._namespaces, clock=self._clock,
                    patience=self._patience, luck=self._luck,
                )  # fmt: skip
                self._running[name].start()
        for name, delivery in self._running.items():
            await self._store.save_state(name, delivery.record.document())

    async def _end(self, names: Sequence[str], *, save: bool = False) -> None:
        """Without saving the place: of webhooks that are gone, or another gateway's now."""
        ended = [self._running.pop(name) for name in names if name in self._running]
        await asyncio.gather(*(each.stop(save=save) for each in ended))
        for each in ended:
            if each.hook.name not in self._running:
                _behind.remove(each.hook.name)       # whoever delivers now tells it
