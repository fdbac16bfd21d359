"""A JobMetrics object beside each TrainingJob object, written now and then, and only when something is new."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from recmesh.crd.things import Object
from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import MeshError, NotFound
from recmesh.runtime.telemetry import get_logger
from services.jobmaster.app.run import Run
from services.jobmaster.domain import jobmetrics as rules
from services.jobmaster.domain.job import ObjectRef

logger = get_logger(__name__)

LOOK_S = 1.0
MOST_AT_ONCE = 10
"""Objects that one look writes: of very many jobs each is told of less often, and other calls keep their share."""


class Board(Protocol):
    """Where JobMetrics objects are."""

    async def make(self, thing: Object) -> None:
        """The object is there, as this says, whatever was there before."""
        ...

    async def tell(self, ref: ObjectRef, status: Object) -> None:
        """What is measured. NotFound when the object is not there."""
        ...


@dataclass(slots=True)
class Known:
    """What was written of a job."""

    ref: ObjectRef
    told: dict[str, Any] = field(default_factory=dict)
    made: bool = False
    due: float = float("-inf")


class JobMetrics:
    """Looks at the jobs that this jobmaster holds."""

    def __init__(
        self, board: Board, runs: Callable[[], Mapping[str, Run]], *, clock: Clock, every_s: float,
        may_write: Callable[[str], None],
    ) -> None:
        """may_write: raises where the job is another jobmaster's by now."""
        self._board, self._runs, self._clock = board, runs, clock
        self._every_s, self._may_write = every_s, may_write
        self._known: dict[str, Known] = {}

    async def look(self) -> float:
        """Writes what is due; seconds until the next look."""
        runs, now = self._runs(), self._clock.monotonic()
        for job_id in self._known.keys() - runs.keys():
            del self._known[job_id]
        waiting: list[tuple[Run, Known]] = []
        for job_id, run in runs.items():
            ref = run.job.object
            if ref is None or run.job.intent.delete:
                continue
            known = self._known.get(job_id)
            if known is None or known.ref != ref:
                known = self._known[job_id] = Known(ref)
            if now >= known.due:
                waiting.append((run, known))
        waiting.sort(key=lambda item: item[1].due)
        due: list[tuple[Run, Known, dict[str, Any]]] = []
        for run, known in waiting:
            if len(due) == MOST_AT_ONCE:
                break               # of those behind nothing is measured either: they are very many
            told = rules.measured(run.status, run.vitals.beats, now=self._clock.now())
            if rules.is_same(told, known.told):
                known.due = now + self._every_s
            else:
                due.append((run, known, told))
        await asyncio.gather(*(self._write(*each) for each in due))
        return LOOK_S

    async def _write(self, run: Run, known: Known, told: dict[str, Any]) -> None:
        known.due = self._clock.monotonic() + self._every_s
        try:
            self._may_write(run.job_id)
            if not known.made:
                await self._board.make(rules.thing_of(known.ref))
                known.made = True
            await self._board.tell(known.ref, told)
            known.told = told
        except NotFound:
            known.made = False      # somebody has deleted it, or its job's object is going
        except MeshError as error:
            logger.warning("job %s: what it measures is not told: %s", run.job_id, error.message)
