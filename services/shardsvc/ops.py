"""The ops page of shardsvc: queues, who holds leases, how fast runs go, what went back, datasets."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from recmesh.runtime.clock import Clock
from recmesh.runtime.ops import Cell, Chart, Log, OpsServer, Page, Recorder, Table, Tile, Tiles, Tone, state, text
from recmesh.runtime.ops.panels import Points, Value
from recmesh.runtime.readiness import Readiness
from services.shardsvc.app import Datasets, Lags, RunProgress, Runs
from services.shardsvc.config import Config
from services.shardsvc.domain.alignment import Lag
from services.shardsvc.domain.dataset import Dataset
from services.shardsvc.domain.lease import Cause

MOST_CHARTED = 8
MOST_HOLDERS = 100
_DATASETS_KEPT_S = 10.0
_TONES = {
    Cause.EXPIRED: Tone.WARN, Cause.CRASHED: Tone.BAD, Cause.ORPHANED: Tone.WARN, Cause.RELEASED: Tone.IDLE,
    Cause.CUT: Tone.WARN,
}  # fmt: skip


def release() -> str:
    """recmesh's version."""
    try:
        return version("recmesh")
    except PackageNotFoundError:
        return "0"


class View:
    """What the page shows, from what the sweeper saw last; it asks the stores for nothing but datasets."""

    def __init__(self, runs: Runs, datasets: Datasets, lags: Lags, *, clock: Clock) -> None:
        self._runs, self._lags = runs, lags
        self._datasets = datasets
        self._clock = clock
        self._known: list[Dataset] = []
        self._known_until = 0.0
        self.recorder = Recorder("figures", self._sample, every_s=2.0)

    def page(self) -> Page:
        """What a person sees."""
        return Page(
            "shardsvc", subtitle="datasets, data tasks and shard leases", refresh_s=1.0, choices=("job",),
            links={"all jobs": "./"},
            panels=[
                Tiles("Now", self._tiles),
                Table(
                    "Runs",
                    ["job", "gen", "state", "trained", "of", "queued", "leased", "leases", "samples/s", "left",
                     "requeues", "expired"],
                    self._rows, empty="no run is open", chosen_by="job",
                ),
                Chart("Samples trained per second", self._pace, unit="samples/s", wide=True, chosen_by="job"),
                Table("Partitions of topics", ["job", "partition", "state", "next", "end", "behind", "lag"],
                      self._partitions, empty="no job trains on a topic", chosen_by="job"),
                Table("Leases by worker", ["job", "worker", "leases", "positions", "oldest"], self._holders,
                      empty="nobody holds a lease", chosen_by="job"),
                Table("Back in the queue", ["at", "job", "worker", "positions", "from", "cause"], self._requeues,
                      empty="nothing was requeued", chosen_by="job"),
                Table("Datasets", ["name", "revision", "rows", "files", "format", "registered"], self._registered,
                      empty="none is registered"),
                Log("Log"),
            ],
        )  # fmt: skip

    def figures(self) -> Mapping[str, Any]:
        """For $SRV.STATS."""
        latest = self._runs.latest.values()
        return {
            "runs": len(latest),
            "queued": sum(run.view.queued for run in latest),
            "leases": sum(len(run.view.leases) for run in latest),
            "requeues": sum(run.view.requeues for run in latest),
        }

    def _sample(self) -> Mapping[str, float]:
        return {job_id: run.per_s for job_id, run in self._runs.latest.items()}

    def _tiles(self) -> list[Tile]:
        latest = list(self._runs.latest.values())
        workers = {lease.worker for run in latest for lease in run.view.leases}
        expirations = sum(run.view.expirations for run in latest)
        return [
            Tile("runs", len(latest), note="open"),
            Tile("queued", text.count(sum(run.view.queued for run in latest)), note="samples"),
            Tile("leased", text.count(sum(run.view.leased for run in latest)), note="samples"),
            Tile("leases", sum(len(run.view.leases) for run in latest), note=f"{len(workers)} workers"),
            Tile("samples/s", text.count(sum(run.per_s for run in latest))),
            Tile("expired", expirations, tone=Tone.WARN if expirations else Tone.OK),
        ]

    def _rows(self) -> Iterable[Sequence[Value]]:
        for job_id, run in sorted(self._runs.latest.items()):
            view = run.view
            share = view.done / view.total if view.total else 1.0
            yield [
                job_id, view.gen, _state(run), Cell(text.share(share), Tone.OK, share=share),
                text.count(view.total), text.count(view.queued), text.count(view.leased), len(view.leases),
                text.count(run.per_s), "-" if run.eta_s is None else text.duration(run.eta_s),
                view.requeues, Cell(str(view.expirations), Tone.WARN if view.expirations else Tone.PLAIN),
            ]  # fmt: skip

    def _partitions(self) -> Iterable[Sequence[Value]]:
        for job_id, lags in sorted(self._lags.known.items()):
            for lag in sorted(lags, key=lambda each: -each.lag_s)[:MOST_HOLDERS]:
                yield [
                    job_id, lag.uri, _standing(lag), lag.offset, lag.end,
                    text.count(lag.end - lag.offset), text.duration(lag.lag_s),
                ]  # fmt: skip

    def _pace(self) -> Mapping[str, Points]:
        return self.recorder.points(*sorted(self._runs.latest)[:MOST_CHARTED])

    def _holders(self) -> Iterable[Sequence[Value]]:
        rows: list[Sequence[Value]] = []
        for job_id, run in sorted(self._runs.latest.items()):
            held: dict[str, list[tuple[int, float]]] = {}
            for lease in run.view.leases:
                held.setdefault(lease.worker, []).append((lease.hi - lease.progress, lease.age_s))
            for worker, leases in sorted(held.items()):
                positions, ages = sum(p for p, _ in leases), max(age for _, age in leases)
                rows.append([job_id, worker, len(leases), text.count(positions), text.duration(ages)])
        return rows[:MOST_HOLDERS]

    def _requeues(self) -> Iterable[Sequence[Value]]:
        for at, job_id, one in reversed(self._runs.requeued):
            yield [
                datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S"), job_id, one.worker,
                text.count(one.hi - one.lo), one.lo, Cell(one.cause.value, _TONES[one.cause]),
            ]  # fmt: skip

    async def _registered(self) -> Iterable[Sequence[Value]]:
        now = self._clock.monotonic()
        if now >= self._known_until:
            self._known = await self._datasets.list()
            self._known_until = now + _DATASETS_KEPT_S
        return [
            [
                dataset.name, dataset.revision, text.count(dataset.rows), dataset.files,
                ", ".join(sorted({view.source.format for view in dataset.spec.views()})),
                text.age(dataset.created, now=self._clock.now()),
            ]
            for dataset in self._known
        ]  # fmt: skip


def _standing(lag: Lag) -> Cell:
    """How a partition is: a job has it for as long as it is listed, also while it has nothing to train of it."""
    if lag.offset >= lag.end:
        return Cell("caught up", Tone.OK)
    if lag.assigned:
        return Cell("in training", Tone.OK)
    return Cell("just arrived", Tone.IDLE)       # its messages are no tasks yet


def _state(run: RunProgress) -> Cell:
    if run.drained:
        return state("done")
    return state("running" if run.view.leases else "waiting")


def server(config: Config, view: View, ready: Readiness) -> OpsServer:
    """The component that serves the page, probes and metrics."""
    return OpsServer(
        "shardsvc", config.http_address, view.page(),
        readiness=ready.reason,
        token=config.token, version=release(), grafana=config.grafana_url,
        tls=config.http_tls, metrics_token=config.metrics_token,
    )  # fmt: skip
