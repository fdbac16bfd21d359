"""The loop of what looks at a job every so often: a look that failed is told, and the next one comes."""

from collections.abc import Awaitable, Callable

from recmesh.runtime.errors import MeshError
from recmesh.runtime.telemetry import get_logger
from services.jobmaster.app.run import Run

logger = get_logger(__name__)


async def look_every(run: Run, every_s: float, look: Callable[[], Awaitable[None]], *, at: str) -> None:
    """Runs until it is cancelled. `at`: what is looked at, for the log, which has a lasting trouble once.

    One job's look that goes wrong in whatever way must end neither the loop nor the job.
    """
    told = ""
    while True:
        await run.context.clock.sleep(every_s)
        try:
            await look()
            told = ""
        except MeshError as error:
            if error.message != told:
                logger.warning("job %s: the look at %s is made again later: %s", run.job_id, at, error.message)
            told = error.message
        except Exception:
            logger.exception("job %s: the look at %s failed", run.job_id, at)
