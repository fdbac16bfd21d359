"""The bus's way in: the command `job.submit` makes a job, exactly as a call does."""

import orjson

from recmesh.runtime.bus import Bus
from recmesh.runtime.errors import CallerError, InvalidArgument, ResourceExhausted, Unavailable
from recmesh.runtime.events import Event, catalog
from recmesh.runtime.lifecycle import Component
from recmesh.runtime.telemetry import get_logger
from services.jobmaster.app.jobs import Jobs

logger = get_logger(__name__)

DURABLE = "jobmaster-submit"


class SubmitCommands:
    """Handles `job.submit`. The event's id stands for a missing request id: a redelivery is no second job."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def handle(self, event: Event[catalog.JobSubmit]) -> None:
        """InvalidArgument sends a refused specification to the dead letters, with the reasons."""
        command = event.data
        try:
            run = await self._jobs.submit(
                orjson.dumps(command.spec).decode(),
                request_id=command.request_id or f"{event.source}/{event.id}",
                submitter=command.submitter or event.source, dry_run=False,
            )
        except InvalidArgument:
            raise
        except (Unavailable, ResourceExhausted):
            raise  # another jobmaster leads, a service is away, or too many jobs live: delivered again
        except CallerError as error:
            raise InvalidArgument(error.message, reason=error.reason, violations=error.violations) from error
        logger.info("job %s came by event %s", run.job_id, event.id)


def consumer(bus: Bus, jobs: Jobs) -> Component:
    """The component that listens."""
    handler = SubmitCommands(jobs).handle
    return bus.consume(DURABLE, [catalog.JOB_SUBMIT], handler, max_in_flight=8, max_deliver=20)
