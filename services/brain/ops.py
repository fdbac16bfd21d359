"""The ops page of brain: plans with their reasons, the fit and the front of a job, what came of changes; figures."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from recmesh.client import explanations
from recmesh.explain import tables, words
from recmesh.explain.plots import plots
from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import NotFound
from recmesh.runtime.ops import Cell, Chart, Log, OpsServer, Page, Plots, Table, Tile, Tiles, Tone, state, text
from recmesh.runtime.ops.panels import Choice, Points, Value
from recmesh.runtime.ops.plots import Axis, Plot
from recmesh.runtime.readiness import Readiness
from services.brain.app.jobs import Jobs
from services.brain.app.lending import Lending
from services.brain.app.serving import Serving
from services.brain.config import BrainSettings
from services.brain.domain.loans.ledger import HELD, State, sums
from services.brain.domain.model import RolePlan
from services.brain.domain.serving import Reason, changed

if TYPE_CHECKING:
    from services.brain.app.placing import Placing

_DECISIONS = tables.decisions([], words.utc, job=str).columns
_CHANGES = tables.changes([], words.utc, job=str).columns

CHART_S = 3600.0
MAX_CHARTED = 8
SHOWN = 50
CHARTED_LOANS = 2000
SURPRISES = (Reason.SATURATED, Reason.LIMIT)


def release() -> str:
    """recmesh's version."""
    try:
        return version("recmesh")
    except PackageNotFoundError:
        return "0"


def shape(roles: Sequence[RolePlan]) -> str:
    """`2 worker × 1 CPU 2.0 GiB, ...`"""
    return words.shape([explanations.RolePlan.model_validate(asdict(each)) for each in roles])


class View:
    """What the page shows; it asks the app, which asks the database, only while someone looks."""

    def __init__(
        self, app: Jobs, serving: Serving, lending: Lending, placing: "Placing | None" = None, *, clock: Clock
    ) -> None:
        """placing: None where no scheduler asks."""
        self._app, self._serving, self._placing, self._clock = app, serving, placing, clock
        self._lending = lending

    def page(self) -> Page:
        """What a person sees."""
        return Page(
            "brain", subtitle="what resources each job should have", refresh_s=2.0, choices=("job",),
            links={"all jobs": "./"},
            panels=[
                Tiles("Now", self._tiles),
                Plots("A job's plan", self._plots, empty="brain has not looked at a job that trains yet"),
                Table(
                    "Decisions", _DECISIONS, self._decisions, empty="no job that trains has asked yet",
                    chosen_by="job",
                ),
                Table("Changes, samples/s", _CHANGES, self._changes, empty="no job was changed yet", chosen_by="job"),
                Table("Plans", ["at", "job", "from", "plan", "why"], self._plans, empty="no job has asked yet",
                      chosen_by="job"),
                Table(
                    "Processes of served models", ["at", "model", "requests/s", "kind", "processes", "reason", "why"],
                    self._served, empty="no gateway has asked for a change yet",
                ),
                *self._loans(),
                *self._placement(),
                Chart("Throughput per job", self._throughput, unit="samples/s", wide=True, chosen_by="job"),
                Table(
                    "History", ["ended", "job", "owner", "model", "outcome", "samples", "samples/s", "plan"],
                    self._history, empty="no job has ended yet", chosen_by="job",
                ),
                Log("Log"),
            ],
        )  # fmt: skip

    def _loans(self) -> list[Chart | Table]:
        if self._lending.pool is None:
            return []
        return [
            Chart("Room lent to serving", self._lent, unit="HNs", wide=True),
            Table(
                "Loans", ["planned", "job", "state", "since", "due", "renewed", "cause", "why"], self._ledger,
                empty="nothing was lent yet",
            ),
        ]  # fmt: skip

    def _placement(self) -> list[Table]:
        if self._placing is None:
            return []
        return [Table(
            "Placement of pods", ["at", "pod", "application", "nodes", "best node", "switch", "reason", "why"],
            self._placed, empty="no scheduler has asked yet",
        )]  # fmt: skip

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
            *self._loan_tiles(),
            *self._placement_tiles(),
        ]

    def _loan_tiles(self) -> list[Tile]:
        if self._lending.pool is None:
            return []
        count, standing = sums(self._lending.open, self._clock.now()), self._lending.standing()
        return [
            Tile("HNs' room lent", count.lent, note=f"{count.coming} coming, {count.returning} returning"),
            Tile("HNs", standing.used, note=f"{standing.own} of serving's own room, {standing.needed} needed"),
            Tile("loans overdue", count.late, tone=Tone.WARN if count.late else Tone.PLAIN),
        ]

    def _placement_tiles(self) -> list[Tile]:
        if self._placing is None:
            return []
        counts = self._placing.counts
        return [
            Tile("pods placed", counts["placed"], note=f"{self._placing.nodes} nodes"),
            Tile("no node left", counts["refused"], tone=Tone.WARN if counts["refused"] else Tone.PLAIN),
        ]

    async def _plots(self, choice: Choice) -> Iterable[Plot]:
        """Of the job that the viewer chose, else of the one that was looked at last."""
        job_id = choice.get("job", "")
        if not job_id:
            newest = await self._app.looks(limit=1)
            if not newest:
                return []
            job_id = newest[0].job_id
        try:
            found = await self._app.explain(job_id)
        except NotFound as unknown:
            return [Plot(unknown.message, Axis(""), Axis(""), [], empty="choose another among the decisions below")]
        explained = explanations.Explanation.model_validate(asdict(found))
        return [replace(plot, title=f"{job_id} · {plot.title}") for plot in plots(explained)]

    async def _decisions(self) -> Iterable[Sequence[Value]]:
        """The newest look at each job, and those before that led to a plan."""
        looks, decisions = await asyncio.gather(self._app.looks(limit=SHOWN), self._app.decisions(limit=SHOWN))
        found = {(each.job_id, each.at): each for each in [*looks, *decisions]}
        newest = sorted(found.values(), key=lambda each: each.at, reverse=True)[:SHOWN]
        shown = [explanations.Look.model_validate(asdict(each)) for each in newest]
        return tables.decisions(shown, words.utc, job=_link).rows

    async def _changes(self) -> Iterable[Sequence[Value]]:
        shown = [explanations.Change.model_validate(asdict(each)) for each in await self._app.changes(limit=SHOWN)]
        return tables.changes(shown, words.utc, job=_link).rows

    async def _plans(self) -> Iterable[Sequence[Value]]:
        return [
            [
                words.utc(plan.at), plan.job_id,
                Cell(plan.source, Tone.OK if plan.source == "similar" else Tone.IDLE),
                shape(plan.roles), plan.explanation,
            ]
            for plan in await self._app.plans(limit=SHOWN)
        ]  # fmt: skip

    def _served(self) -> Iterable[Sequence[Value]]:
        """Changes that were decided, newest first."""
        for look in list(reversed(self._serving.looks))[:SHOWN]:
            for kind, one in changed(look):
                count = f"{kind.replicas} → {one.replicas}" + (" (dry run)" if look.dry_run else "")
                yield [
                    words.utc(look.at), look.model, text.count(look.arrivals_per_s), kind.name.upper(), count,
                    Cell(one.reason, Tone.WARN if one.reason in SURPRISES else Tone.OK), one.why,
                ]  # fmt: skip

    async def _ledger(self) -> Iterable[Sequence[Value]]:
        now = self._clock.now()
        return [
            [
                words.utc(loan.planned), loan.lender, Cell(loan.state, _tone(loan.state, loan.is_late(now))),
                words.utc(loan.since), words.utc(loan.due) if loan.due else "", loan.renewals, loan.cause, loan.why,
            ]
            for loan in await self._lending.ledger(is_open=False, limit=SHOWN)
        ]  # fmt: skip

    async def _lent(self) -> Mapping[str, Points]:
        """Of the last hour, by the ledger: when serving could use how many, and what training had given up."""
        now = self._clock.now()
        loans = await self._lending.ledger(is_open=False, limit=CHARTED_LOANS)
        steps = [now - CHART_S + place * CHART_S / 120 for place in range(121)]
        lent: Points = [(at, sum(bool(loan.lent) and loan.lent <= at < (loan.ended or now + 1) for loan in loans))
                        for at in steps]  # fmt: skip
        gone: Points = [(at, sum(loan.planned <= at < (loan.ended or now + 1) for loan in loans
                                 if loan.state in HELD or loan.lent)) for at in steps]  # fmt: skip
        return {"usable by serving": lent, "given up by training": gone}

    def _placed(self) -> Iterable[Sequence[Value]]:
        """Answers to the scheduler, newest first."""
        for each in list(reversed(self._placing.decisions))[:SHOWN] if self._placing else []:
            yield [
                words.utc(each.at), each.pod, each.app, f"{each.kept} of {each.asked}", each.node, each.switch,
                Cell(each.reason, Tone.OK if each.node else Tone.WARN), each.why,
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
                words.utc(past.ended), past.job.job_id, past.job.owner, past.job.model, state(past.outcome),
                text.count(past.samples), text.count(past.samples_per_s), shape(past.final_plan),
            ]
            for past in await self._app.history(limit=SHOWN)
        ]  # fmt: skip


def _tone(state: State, is_late: bool) -> Tone:
    if is_late:
        return Tone.BAD
    return Tone.OK if state is State.LENT else Tone.IDLE if state in (State.RETURNED, State.CANCELLED) else Tone.WARN


def _link(job_id: str) -> Cell:
    """Shows that job's plots."""
    return Cell(job_id, href=f"/?job={quote(job_id, safe='')}")


def server(settings: BrainSettings, view: View, ready: Readiness) -> OpsServer:
    """The component that serves the page, probes and metrics."""
    return OpsServer(
        "brain", settings.http_address, view.page(),
        readiness=ready.reason,
        token=settings.token, version=release(), grafana=settings.grafana_url,
        tls=settings.http_tls, metrics_token=settings.metrics_token,
    )  # fmt: skip
