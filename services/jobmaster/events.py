"""The bus's way in: the command `job.submit` makes a job, exactly as a call does."""

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from recmesh.runtime.bus import Bus
from recmesh.runtime.errors import CallerError, InvalidArgument, ResourceExhausted, Unavailable
from recmesh.runtime.events import Event, catalog
from recmesh.runtime.lifecycle import Component
from recmesh.runtime.telemetry import get_logger
from services.jobmaster.app.jobs import Jobs

logger = get_logger(__name__)

DURABLE = "jobmaster-submit"
Publish = Callable[[Event[Any]], Awaitable[None]]


MAX_VIOLATIONS = 100
MAX_TEXT = 600
"""Characters of one text in an answer, which must stay under the bus's message limit."""


class SubmitCommands:
    """Handles `job.submit`. The event's id stands for a missing request id: a redelivery is no second job.

    A refusal is answered with `job.refused`, under the command's entity. Its id is fixed: answered again
    after a redelivery within the bus's window for duplicates (two minutes), it is no second event.
    """

    def __init__(self, jobs: Jobs, *, publish: Publish) -> None:
        self._jobs = jobs
        self._publish = publish

    async def handle(self, event: Event[catalog.JobSubmit]) -> None:
        """InvalidArgument sends a refused specification to the dead letters, with the reasons."""
        command = event.data
        try:
            run = await self._jobs.submit(
                orjson.dumps(command.spec).decode(),
                request_id=command.request_id or f"{event.source}/{event.id}",
                submitter=command.submitter or event.source, dry_run=False,
            )
        except InvalidArgument as error:
            await self._refuse(event, error)
            raise
        except (Unavailable, ResourceExhausted):
            raise  # another jobmaster leads, a service is away, or too many jobs live: delivered again
        except CallerError as error:
            await self._refuse(event, error)
            raise InvalidArgument(error.message, reason=error.reason, violations=error.violations) from error
        logger.info("job %s came by event %s", run.job_id, event.id)

    async def _refuse(self, event: Event[catalog.JobSubmit], error: CallerError) -> None:
        """Before the command goes to the dead letters: an answer that cannot be sent is tried again with it."""
        wrong = [
            catalog.WrongField(path=item.path[:MAX_TEXT], reason=item.reason[:MAX_TEXT])
            for item in error.violations[:MAX_VIOLATIONS]
        ]
        data = catalog.JobRefused(
            refused_id=event.id, refused_source=event.source, request_id=event.data.request_id[:MAX_TEXT],
            submitter=event.data.submitter[:MAX_TEXT], reason=error.reason, message=error.message[:MAX_TEXT],
            violations=wrong,
        )
        answer_id = f"refused.{hashlib.sha256(f'{event.source}/{event.id}'.encode()).hexdigest()[:32]}"
        await self._publish(Event(catalog.JOB_REFUSED, event.entity_id, data, id=answer_id))


def consumer(bus: Bus, jobs: Jobs) -> Component:
    """The component that listens."""
    handler = SubmitCommands(jobs, publish=bus.publish).handle
    return bus.consume(DURABLE, [catalog.JOB_SUBMIT], handler, max_in_flight=8, max_deliver=20)
