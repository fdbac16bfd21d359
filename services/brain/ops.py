"""The ops page of brain: plans with their reasons, how jobs do, what was learned from; figures."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from recmesh.runtime.clock import Clock
from recmesh.runtime.ops import Cell, Chart, Log, OpsServer, Page, Table, Tile, Tiles, Tone, state, text
from recmesh.runtime.ops.panels import Points, Value
from recmesh.runtime.readiness import Readiness
from services.brain.app.jobs import Jobs
from services.brain.config import BrainSettings
from services.brain.domain.model import RolePlan

CHART_S = 3600.0
MAX_CHARTED = 8
SHOWN = 50


def release() -> str:
    """recmesh's version."""
    try:
        return version("recmesh")
    except PackageNotFoundError:
        return "0"


def shape(roles: Sequence[RolePlan]) -> str:
    """`2 worker × 1 CPU 2.0 GiB, ...`"""
    return ", ".join(f"{r.replicas} {r.role} × {r.cpu:g} CPU {text.size(r.memory_bytes)}" for r in roles)


class View:
    """What the page shows; it asks the app, which asks the database, only while someone looks."""

    def __init__(self, app: Jobs, *, clock: Clock) -> None:
        self._app, self._clock = app, clock

    def page(self) -> Page:
        """What a person sees."""
        return Page(
            "brain", subtitle="what resources each job should have", refresh_s=2.0,
            panels=[
                Tiles("Now", self._tiles),
                Table("Plans", ["at", "job", "from", "plan", "why"], self._plans, empty="no job has asked yet"),
                Chart("Throughput per job", self._throughput, unit="samples/s", wide=True),
                Table(
                    "History", ["ended", "job", "owner", "model", "outcome", "samples", "samples/s", "plan"],
                    self._history, empty="no job has ended yet",
                ),
                Log("Log"),
            ],
        )  # fmt: skip

    def figures(self) -> Mapping[str, Any]:
        """For $SRV.STATS."""
        return self._app.counts()

    def _tiles(self) -> list[Tile]:
        counts = self._app.counts()
        similar = counts["plans_from_similar"]
        return [
            Tile("plans", counts["plans"], note="since the start"),
            Tile("from similar jobs", similar, tone=Tone.OK if similar else Tone.PLAIN),
            Tile("profiles", counts["profiles"], note="since the start"),
            Tile("jobs recorded", counts["histories"], note="since the start"),
        ]

    async def _plans(self) -> Iterable[Sequence[Value]]:
        return [
            [
                _moment(plan.at), plan.job_id,
                Cell(plan.source, Tone.OK if plan.source == "similar" else Tone.IDLE),
                shape(plan.roles), plan.explanation,
            ]
            for plan in await self._app.plans(limit=SHOWN)
        ]  # fmt: skip

    async def _throughput(self) -> Mapping[str, Points]:
        lines: dict[str, list[tuple[float, float | None]]] = {}
        for job_id, at, rate in await self._app.throughput(since=self._clock.now() - CHART_S):
            lines.setdefault(job_id, []).append((at, rate))
        newest = sorted(lines, key=lambda job_id: lines[job_id][-1][0], reverse=True)[:MAX_CHARTED]
        return {job_id: lines[job_id] for job_id in newest}

    async def _history(self) -> Iterable[Sequence[Value]]:
        return [
            [
                _moment(past.ended), past.job.job_id, past.job.owner, past.job.model, state(past.outcome),
                text.count(past.samples), text.count(past.samples_per_s), shape(past.final_plan),
            ]
            for past in await self._app.history(limit=SHOWN)
        ]  # fmt: skip


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%m-%d %H:%M:%S")


def server(settings: BrainSettings, view: View, ready: Readiness) -> OpsServer:
    """The component that serves the page, probes and metrics."""
    return OpsServer(
        "brain", settings.http_address, view.page(),
        readiness=ready.reason,
        token=settings.token, version=release(),
    )  # fmt: skip
