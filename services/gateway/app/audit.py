"""The audit: each change that was asked for is told to the bus, before its answer is given."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from recmesh.runtime import telemetry
from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import CallerError, MeshError
from recmesh.runtime.events import Event, access
from services.gateway.domain.audit import UNKNOWN, Entry, Outcome
from services.gateway.domain.callers import Rate, TokenBucket

STRANGERS = Rate(per_s=1.0, burst=30.0)
"""Requests without a right credential that are told: anybody can send any number of them."""
MAX_TEXT = 300

_log = telemetry.get_logger(__name__)
_entries = telemetry.Metrics("gateway").counter(
    "audit_entries", "Lines of the audit, by outcome; lost: they are in the log alone; skipped: too many of strangers",
    labels=("outcome",),
)

Publish = Callable[[Event[Any]], Awaitable[None]]


class Audit:
    """Tells `audit.recorded`."""

    def __init__(self, publish: Publish, *, clock: Clock) -> None:
        """`publish` gives up within a second or two: a change that was made is answered, whether it can be told or
        not."""
        self._publish = publish
        self._clock = clock
        self._strangers = TokenBucket(STRANGERS)

    async def record(self, entry: Entry, *, event_id: str = "") -> None:
        """Never raises. With `event_id` the same entry again is no second event."""
        if entry.actor == UNKNOWN and self._strangers.take(self._clock.monotonic()):
            _entries.labels("skipped").inc()
            return
        act = entry.act
        data = access.AuditRecorded(
            actor=entry.actor[:MAX_TEXT], verb=act.verb[:MAX_TEXT], kind=act.kind, object=act.object[:MAX_TEXT],
            outcome=entry.outcome, reason=entry.reason[:MAX_TEXT], via=entry.via,
            request_id=entry.request_id[:MAX_TEXT], peer=entry.peer[:MAX_TEXT], status=entry.status,
        )  # fmt: skip
        about = act.object[:MAX_TEXT] or act.kind
        event = Event(access.AUDIT_RECORDED, about, data)
        event = replace(event, id=event_id) if event_id else event
        try:
            await self._publish(event)
            _entries.labels(entry.outcome).inc()
        except MeshError as error:
            _entries.labels("lost").inc()
            _log.warning("the audit has this in the log alone (%s): %s", error.message, data.model_dump_json())


def outcome_of(error: MeshError) -> Outcome:
    """Whose fault it was."""
    return "refused" if isinstance(error, CallerError) else "failed"
