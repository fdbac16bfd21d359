"""Metrics of jobs with `tracking`, to where they ask: while they train, and once more at their end."""

import math
from collections.abc import Awaitable, Callable, Iterable

from recmesh.runtime.clock import Clock
from recmesh.runtime.telemetry import get_logger
from recmesh.tracking import Report
from services.jobmaster.app.run import Run
from services.jobmaster.peers.tracking import wanted

logger = get_logger(__name__)
LOOK_S = 1.0
TOLD_AFTER_END_S = 86_400.0
"""A jobmaster that was away tells the ends of so long; of older jobs they were told, or are of no use."""
MAX_PARAMS = 90
"""A call of MLflow takes a hundred."""
Tell = Callable[[Report], Awaitable[dict[str, str]]]


class Tracking:
    """What was told is kept in memory: a sink that hears an end twice has it once."""

    def __init__(self, runs: Callable[[], Iterable[Run]], tell: Tell, *, clock: Clock) -> None:
        self._runs, self._tell, self._clock = runs, tell, clock
        self._told: dict[tuple[str, float], float] = {}
        """When each job was last told of; infinity: its end was."""

    async def look(self) -> float:
        """Tells of those that are due, one after another; seconds until the next look."""
        runs = [run for run in self._runs() if wanted(run.spec)]
        keys = {(run.job_id, run.job.created) for run in runs}
        self._told = {key: at for key, at in self._told.items() if key in keys}
        for run in runs:
            if self._is_due(run):
                await self._report(run)
        return LOOK_S

    def _is_due(self, run: Run) -> bool:
        status, asked = run.status, run.spec.tracking
        assert asked is not None
        told = self._told.get((run.job_id, run.job.created), -math.inf)
        if status.has_ended:
            return told < math.inf and self._clock.now() - status.ended < TOLD_AFTER_END_S
        return status.trained_since > 0 and self._clock.now() - told >= asked.every_s

    async def _report(self, run: Run) -> None:
        now = self._clock.now()
        errors = await self._tell(report_of(run, now))
        for kind, error in errors.items():
            logger.warning("job %s: %s takes no metrics: %s", run.job_id, kind, error)
            run.note(f"{kind} takes no metrics: {error}"[:200])
        ended = run.status.has_ended and not errors
        self._told[run.job_id, run.job.created] = math.inf if ended else now


def report_of(run: Run, now: float) -> Report:
    """The job as it is."""
    status, asked = run.status, run.spec.tracking
    assert asked is not None
    figures = {
        **status.metrics, "samples_per_second": status.samples_per_s,
        "workers": float(len(status.live("worker"))), "parameter_servers": float(len(status.live("ps"))),
        "failures": float(status.failures), "rollbacks": float(status.rollbacks),
    }
    if status.partitions:
        figures["lag_seconds"] = status.lag_s
    if status.total and not status.goes_on:
        figures["progress"] = status.samples / status.total
    return Report(
        run.job_id, run.job.created, wanted(run.spec), asked.experiment,
        status.ended if status.has_ended else now, status.samples,
        metrics={name: value for name, value in figures.items() if math.isfinite(value)},
        params=dict(sorted(_params(run).items())[:MAX_PARAMS]), ended=status.phase.value if status.has_ended else "",
    )


def _params(run: Run) -> dict[str, str]:
    """What tells jobs apart: the model with its parameters, how it is trained, and the user's labels."""
    found = {"owner": run.spec.owner, **{f"label.{name}": value for name, value in run.spec.labels.items()}}
    for part in ("model", "training"):
        _flatten(part, getattr(run.spec, part).model_dump(mode="json", exclude_unset=True), found)
    return found


def _flatten(name: str, value: object, found: dict[str, str]) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            _flatten(f"{name}.{key}", inner, found)
    elif value is not None:
        found[name] = str(value)
