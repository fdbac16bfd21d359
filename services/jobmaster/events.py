"""The bus's way in: the commands `job.submit`, `job.stop`, `job.suspend` and `job.resume` do exactly what calls do."""

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import orjson

from recmesh.runtime.bus import Bus
from recmesh.runtime.errors import CallerError, InvalidArgument, ResourceExhausted, Unavailable
from recmesh.runtime.events import Event, EventType, access, catalog
from recmesh.runtime.lifecycle import Component
from recmesh.runtime.telemetry import get_logger

logger = get_logger(__name__)

SUBMIT = "jobmaster-submit"
STOP = "jobmaster-stop"
PAUSES = "jobmaster-pauses"
"""Durables of their own: a jobmaster one version older knows the first alone, and leaves the others as they are."""
PAUSING: Sequence[EventType[Any]] = (catalog.JOB_SUSPEND, catalog.JOB_RESUME)
Publish = Callable[[Event[Any]], Awaitable[None]]


MAX_VIOLATIONS = 100
MAX_TEXT = 600
"""Characters of one text in an answer, which must stay under the bus's message limit."""
ENDED = "JOB_ENDED"


class Accepted(Protocol):
    """A job, as far as commands look at it."""

    @property
    def job_id(self) -> str:
        """Its id."""
        ...


class UseCases(Protocol):
    """What commands ask for, of jobs wherever they run."""

    async def submit(self, spec_json: str, *, request_id: str, submitter: str, dry_run: bool) -> Accepted:
        """A new job, or the one that this request made before."""
        ...

    async def stop(self, job_id: str, *, reason: str, finish: bool) -> object:
        """Stops the job."""
        ...

    async def suspend(self, job_id: str, *, reason: str) -> object:
        """Sets it aside."""
        ...

    async def resume(self, job_id: str) -> object:
        """Goes on with it."""
        ...


class Commands:
    """Handles commands. The event's id stands for a missing request id: a redelivery is no second job.

    A refusal is answered with `job.refused`, under the command's entity. Its id is fixed: answered again
    after a redelivery within the bus's window for duplicates (two minutes), it is no second event. Each
    command that was carried out or refused is told by `audit.recorded`, once in the same sense.
    """

    def __init__(self, jobs: UseCases, *, publish: Publish) -> None:
        self._jobs = jobs
        self._publish = publish

    async def submit(self, event: Event[catalog.JobSubmit]) -> None:
        """InvalidArgument sends a refused specification to the dead letters, with the reasons."""
        command = event.data
        try:
            run = await self._jobs.submit(
                orjson.dumps(command.spec).decode(),
                request_id=command.request_id or f"{event.source}/{event.id}",
                submitter=command.submitter or event.source, dry_run=False,
            )
        except (Unavailable, ResourceExhausted):
            raise  # the job changes hands, a service is away, or too many jobs live: delivered again
        except CallerError as error:
            await self._refuse(event, error)
            raise InvalidArgument(error.message, reason=error.reason, violations=error.violations) from error
        logger.info("job %s came by event %s", run.job_id, event.id)
        await self._audit(event, run.job_id)

    async def stop(self, event: Event[catalog.JobStop]) -> None:
        """The same of a job that cannot be stopped. One that has ended already is stopped well."""
        command = event.data
        try:
            await self._jobs.stop(event.entity_id, reason=command.reason[:MAX_TEXT], finish=command.finish)
        except ResourceExhausted:
            raise  # the disk is full: delivered again
        except CallerError as error:
            if error.reason != ENDED:
                await self._refuse(event, error)
                raise InvalidArgument(error.message, reason=error.reason, violations=error.violations) from error
        logger.info("job %s is stopped by event %s", event.entity_id, event.id)
        await self._audit(event, event.entity_id)

    async def pause(self, event: Event[Any]) -> None:
        """`job.suspend` and `job.resume`; the same of a job that is not there, or trains no more."""
        command = event.data
        try:
            if isinstance(command, catalog.JobSuspend):
                await self._jobs.suspend(event.entity_id, reason=command.reason[:MAX_TEXT])
            else:
                await self._jobs.resume(event.entity_id)
        except (Unavailable, ResourceExhausted):
            raise
        except CallerError as error:
            await self._refuse(event, error)
            raise InvalidArgument(error.message, reason=error.reason, violations=error.violations) from error
        logger.info("job %s: %s by event %s", event.entity_id, event.type.name, event.id)
        await self._audit(event, event.entity_id)

    async def _refuse(self, event: Event[Any], error: CallerError) -> None:
        """Before the command goes to the dead letters: an answer that cannot be sent is tried again with it."""
        wrong = [
            catalog.WrongField(path=item.path[:MAX_TEXT], reason=item.reason[:MAX_TEXT])
            for item in error.violations[:MAX_VIOLATIONS]
        ]
        data = catalog.JobRefused(
            refused_id=event.id, refused_source=event.source, request_id=event.data.request_id[:MAX_TEXT],
            submitter=event.data.submitter[:MAX_TEXT], reason=error.reason, message=error.message[:MAX_TEXT],
            violations=wrong, command=event.type.name,
        )
        await self._publish(Event(catalog.JOB_REFUSED, event.entity_id, data, id=_id("refused", event)))
        await self._audit(event, event.entity_id, error)

    async def _audit(self, event: Event[Any], job_id: str, error: CallerError | None = None) -> None:
        data = access.AuditRecorded(
            actor=(event.data.submitter or event.source)[:MAX_TEXT], verb=event.type.name.partition(".")[2],
            kind="job", object=job_id, outcome="refused" if error else "done", reason=error.reason if error else "",
            via="event", request_id=f"{event.source}/{event.id}"[:MAX_TEXT],
        )  # fmt: skip
        await self._publish(Event(access.AUDIT_RECORDED, job_id, data, id=_id("audit", event)))


def _id(what: str, event: Event[Any]) -> str:
    return f"{what}.{hashlib.sha256(f'{event.source}/{event.id}'.encode()).hexdigest()[:32]}"


def consumers(bus: Bus, jobs: UseCases) -> Sequence[Component]:
    """The components that listen."""
    commands = Commands(jobs, publish=bus.publish)
    return [
        bus.consume(SUBMIT, [catalog.JOB_SUBMIT], commands.submit, max_in_flight=8, max_deliver=20),
        bus.consume(STOP, [catalog.JOB_STOP], commands.stop, max_in_flight=8, max_deliver=20),
        bus.consume(PAUSES, PAUSING, commands.pause, max_in_flight=1, max_deliver=20),
    ]
