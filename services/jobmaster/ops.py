"""The ops page of jobmaster: jobs, their roles and what a step is made of, throughput, decisions, transitions."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from recmesh.runtime.bus import Bus
from recmesh.runtime.ops import (
    Cell,
    Chart,
    Log,
    OpsServer,
    Page,
    Recorder,
    Table,
    Tile,
    Tiles,
    Tone,
    state,
    text,
)
from recmesh.runtime.ops.panels import Points, Value
from recmesh.runtime.telemetry import Metrics
from services.jobmaster.app.jobs import Jobs, wanted_of
from services.jobmaster.app.run import Run
from services.jobmaster.app.sharing import Sharing
from services.jobmaster.config import JobmasterSettings
from services.jobmaster.domain.minutes import MINUTE_S
from services.jobmaster.domain.phase import Phase
from services.jobmaster.domain.shards import BUCKETS
from services.jobmaster.domain.vitals import Serving, mean_step
from services.jobmaster.gauges import SHOWN_AFTER_END_S, JobFigures, RoleFigures, register

MAX_CHARTED = 8
RATE, STEP, LAG = "rate ", "step ", "lag "
PARTS = ("data", "pull", "compute", "push")
MAX_TRANSITIONS = 40
"""Lines of the newest transitions, over all jobs."""
MAX_DECISIONS = 40
"""Lines of the newest decisions, over all jobs."""


def release() -> str:
    """recmesh's version."""
    try:
        return version("recmesh")
    except PackageNotFoundError:
        return "0"


def server(
    settings: JobmasterSettings, jobs: Jobs, bus: Bus, charts: Recorder, sharing: Sharing
) -> OpsServer:
    """The component that serves the page, probes and metrics."""
    watch_metrics(jobs)
    return OpsServer(
        "jobmaster", settings.http_address, page(jobs, charts, lambda: len(sharing.members)),
        readiness=lambda: _not_ready(sharing, bus),
        token=settings.token, version=release(), grafana=settings.grafana_url,
        tls=settings.http_tls, metrics_token=settings.metrics_token,
    )


def _not_ready(sharing: Sharing, bus: Bus) -> str:
    if reason := bus.objection():
        return reason
    return "" if sharing.joined.is_set() else "its part of the jobs is not held yet"


def watch_metrics(jobs: Jobs) -> None:
    """Gauges that read the jobs when they are scraped."""
    metrics = Metrics("jobmaster")
    by_phase = metrics.gauge("jobs", "Jobs by phase", labels=("phase",))
    for phase in Phase:
        by_phase.labels(phase.value).set_function(partial(_count, jobs, phase))
    metrics.gauge("samples_per_second", "Samples trained per second, all jobs").set_function(
        lambda: sum(run.status.samples_per_s for run in _training(jobs))
    )
    metrics.gauge("moves_under_way", "Moves of slots between parameter servers, all jobs").set_function(
        lambda: float(sum(run.record.move is not None for run in _runs(jobs)))
    )
    metrics.gauge("role_processes", "Processes of roles that live").set_function(
        lambda: float(sum(role.is_live for run in _runs(jobs) for role in run.status.roles))
    )
    register(lambda: job_figures(jobs))


def job_figures(jobs: Jobs) -> Iterator[JobFigures]:
    """Of jobs that live, and of those that ended a while ago. Of those that this jobmaster holds."""
    for run in _runs(jobs):
        status = run.status
        if status.has_ended and run.context.clock.now() - status.ended > SHOWN_AFTER_END_S:
            continue
        yield JobFigures(
            run.job_id, run.spec.owner, status.phase.value, status.samples, status.total,
            0.0 if status.has_ended else status.samples_per_s, status.failures, status.rollbacks,
            snapshot_at=status.snapshot_at, snapshot_every_s=run.spec.snapshot_every_s,
            lag_s=status.lag_s if status.partitions else None,
            roles={} if status.has_ended else _role_figures(run), metrics=status.metrics,
        )


def _role_figures(run: Run) -> dict[str, RoleFigures]:
    status = run.status
    memory: dict[str, int] = {}
    for role in status.roles:
        beat = run.vitals.beats.get(role.key)
        if role.is_live and beat is not None:
            memory[role.role] = max(memory.get(role.role, 0), beat.memory_bytes)
    return {
        name: RoleFigures(
            len(status.live(name)), wanted, memory.get(name, 0),
            status.memory.get(name) or (status.plan[name].memory_bytes if name in status.plan else 0),
        )
        for name, wanted in wanted_of(run).items()
    }


def _count(jobs: Jobs, phase: Phase) -> float:
    return float(sum(run.status.phase is phase for run in _runs(jobs)))


def page(jobs: Jobs, charts: Recorder, jobmasters: Callable[[], int] = lambda: 1) -> Page:
    """What a person sees. jobmasters: that share the jobs."""
    return Page(
        "jobmaster", subtitle="the life of training jobs", choices=("job",), links={"all jobs": "./"},
        panels=[
            Tiles("Now", lambda: _tiles(jobs, jobmasters())),
            Table(
                "Jobs",
                ["job", "owner", "phase", "progress", "samples/s", "loss", "AUC", "workers", "PS", "gen",
                 "snapshot", "message"],
                lambda: _job_rows(jobs), empty="no job yet: recmesh submit job.yaml", chosen_by="job",
            ),
            Table(
                "The job", ["what", "is"], of_choice=lambda choice: _facts(jobs, choice.get("job", "")),
                empty="choose a job above", wide=True,
            ),
            Chart("Throughput", lambda: _points(charts, RATE), unit="samples/s", chosen_by="job"),
            Chart("AUC by the minute, test-then-train", lambda: _auc(jobs), from_zero=False, chosen_by="job"),
            Chart("Lag of jobs on topics", lambda: _points(charts, LAG), unit="s", chosen_by="job"),
            Chart(
                "A step of the workers, of the newest job or the chosen one", dict, unit="s",
                of_choice=lambda choice: _steps(jobs, charts, choice.get("job", "")),
            ),
            Table(
                "Roles",
                ["job", "role", "state", "process", "restarts", "samples/s", *PARTS, "memory", "rows",
                 "last exit"],
                lambda: _role_rows(jobs), empty="no process runs", chosen_by="job",
            ),
            Table(
                "Timeline", ["at", "job", "matter", "where", "what was seen", "decided", "done", "effect"],
                lambda: _timeline_rows(jobs), empty="no trouble yet", chosen_by="job", limit=MAX_DECISIONS,
            ),
            Table(
                "Transitions", ["at", "job", "from", "to", "why"], lambda: _transition_rows(jobs), chosen_by="job",
                limit=MAX_TRANSITIONS,
            ),
            Table(
                "Slots moved", ["at", "job", "slots", "from", "to", "pause", "why"], lambda: _move_rows(jobs),
                empty="none yet", chosen_by="job", limit=MAX_TRANSITIONS,
            ),
            Log("Log"),
        ],
    )


def figures(jobs: Jobs, sharing: Sharing) -> Mapping[str, Any]:
    """For $SRV.STATS."""
    runs = _runs(jobs)
    return {
        "leading": jobs.is_leading,
        "buckets": len(jobs.buckets),
        "jobmasters": len(sharing.members),
        "jobs": len(runs),
        "live": sum(not run.status.has_ended for run in runs),
        "samples_per_s": sum(run.status.samples_per_s for run in _training(jobs)),
    }


def _runs(jobs: Jobs) -> list[Run]:
    runs = [*(runner.run for runner in jobs.runners.values()), *jobs.unreadable.values()]
    return sorted(runs, key=lambda run: (run.status.has_ended, -run.job.created))


def _training(jobs: Jobs) -> list[Run]:
    return [run for run in _runs(jobs) if not run.status.has_ended and run.record.phase == "open"]


def _tiles(jobs: Jobs, jobmasters: int) -> list[Tile]:
    runs = _runs(jobs)
    live = [run for run in runs if not run.status.has_ended]
    failed = sum(run.status.phase is Phase.FAILED for run in runs)
    processes = sum(role.is_live for run in runs for role in run.status.roles)
    rate = sum(run.status.samples_per_s for run in _training(jobs))
    return [
        Tile("live jobs", len(live), note=f"{len(runs)} known"),
        Tile("samples/s", text.count(rate)),
        Tile("processes", processes, note="parameter servers, workers, others"),
        Tile("failed jobs", failed, tone=Tone.BAD if failed else Tone.PLAIN),
        Tile(
            "buckets of jobs", len(jobs.buckets), tone=Tone.OK if jobs.is_leading else Tone.IDLE,
            note=f"of {BUCKETS}, over {jobmasters} jobmaster(s)",
        ),
    ]


def _job_rows(jobs: Jobs) -> Iterable[Sequence[Value]]:
    for run in _runs(jobs):
        status, wanted = run.status, wanted_of(run)
        is_known = bool(status.total) and not status.goes_on
        share = status.samples / status.total if is_known else 0.0
        yield [
            run.job_id, run.spec.owner, state(status.phase),
            Cell(f"{share:.0%}", share=min(1.0, share)) if is_known else "",
            "" if status.has_ended else text.count(status.samples_per_s),
            _metric(status.metrics, "eval_logloss", "eval_loss", "loss"),
            _metric(status.metrics, "eval_auc", "auc"),
            "" if status.has_ended else f"{_running(run, 'worker')} of {wanted['worker']}",
            "" if status.has_ended else f"{_running(run, 'ps')} of {wanted['ps']}",
            run.record.gen, run.record.last_committed or "", status.message or status.reason,
        ]


def _running(run: Run, role: str) -> int:
    return sum(item.stage == "running" for item in run.status.live(role))


def _metric(metrics: Mapping[str, float], *names: str) -> str:
    return next((f"{metrics[name]:.4f}" for name in names if name in metrics), "")


def _role_rows(jobs: Jobs) -> Iterable[Sequence[Value]]:
    for run in _runs(jobs):
        if run.status.has_ended:
            continue
        for role in run.status.roles:
            beat = run.vitals.beats.get(role.key)
            step = beat.step if beat is not None and beat.step.steps else None
            yield [
                run.job_id, f"{role.role} {role.index}", state(role.stage), role.handle, role.attempt - 1,
                text.count(beat.samples_per_s) if beat and role.role == "worker" else "",
                *(text.duration(getattr(step, f"{name}_s")) if step else "" for name in PARTS),
                text.size(beat.memory_bytes) if beat and beat.memory_bytes else "",
                text.count(beat.rows) if beat and role.role == "ps" else "",
                _serving(beat.serving) if beat and beat.serving and role.is_live else role.exit_reason,
            ]


def _serving(serving: Serving) -> str:
    """A data executor's buffer and queue."""
    return f"{serving.queued} tasks wait, {text.size(serving.held_bytes)} of {text.size(serving.limit_bytes)} held"


def recorder(jobs: Jobs) -> Recorder:
    """The component that samples what the charts show."""
    return Recorder("ops charts", lambda: _probe(jobs), every_s=2.0)


def _probe(jobs: Jobs) -> Mapping[str, float]:
    training = _training(jobs)[:MAX_CHARTED]
    values = {f"{RATE}{run.job_id}": run.status.samples_per_s for run in training}
    values |= {f"{LAG}{run.job_id}": run.status.lag_s for run in training if run.status.partitions}
    for run in training:
        step = mean_step(run.vitals.of("worker"))
        if step.steps:
            values |= {f"{STEP}{run.job_id} {name}": float(getattr(step, f"{name}_s")) for name in PARTS}
    return values


def _steps(jobs: Jobs, charts: Recorder, chosen: str) -> Mapping[str, Points]:
    """Of the chosen job; else of the newest that trains, or that did."""
    points = _points(charts, STEP)
    known = [run.job_id for run in [*_training(jobs), *_runs(jobs)] if f"{run.job_id} {PARTS[0]}" in points]
    job_id = chosen or next(iter(known), "")
    return {name: points[f"{job_id} {name}"] for name in PARTS if f"{job_id} {name}" in points}


def _facts(jobs: Jobs, chosen: str) -> Iterable[Sequence[Value]]:
    """Of the chosen job, what no table has room for."""
    run = next((run for run in _runs(jobs) if run.job_id == chosen), None)
    if run is None:
        return
    status, now = run.status, run.context.clock.now()
    rate = 0.0 if status.has_ended else status.samples_per_s
    facts: dict[str, Value] = {
        "name and owner": f"{run.spec.name}, {run.spec.owner}",
        "phase": state(status.phase), "why": status.message or status.reason,
        "submitted": _moment(run.job.created), "ended": _moment(status.ended),
        "trained": f"{status.samples:,} samples" + (f" of {status.total:,}" if status.total else ""),
        "left": text.duration(status.remaining / rate) if rate and status.total and not status.goes_on else "",
        "generation": run.record.gen, "rollbacks": status.rollbacks, "failures of processes": status.failures,
        "last snapshot": f"{run.record.last_committed}, {text.age(status.snapshot_at, now=now)}"
        if run.record.last_committed and status.snapshot_at else "",
        "lag": text.duration(status.lag_s) if status.partitions and not status.has_ended else "",
        "processes wanted": ", ".join(f"{count} {role}" for role, count in wanted_of(run).items() if count),
        "metrics": ", ".join(f"{name} {value:.4g}" for name, value in sorted(status.metrics.items())),
        "notes": "; ".join(status.notes),
    }
    yield from ([name, value] for name, value in facts.items() if value not in ("", 0))


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if at else ""


def _auc(jobs: Jobs) -> Mapping[str, Points]:
    """Of the newest jobs that have one, by label."""
    lines: dict[str, list[tuple[float, float | None]]] = {}
    for run in [run for run in _runs(jobs) if run.minutes.closed][:MAX_CHARTED]:
        for minute in list(run.minutes.closed):
            for label, value in minute.auc.items():
                lines.setdefault(f"{run.job_id} {label}", []).append((minute.at + MINUTE_S, value))
    return lines


def _points(charts: Recorder, prefix: str) -> Mapping[str, Points]:
    return {
        name.removeprefix(prefix): points
        for name, points in charts.points().items() if name.startswith(prefix)
    }


def _timeline_rows(jobs: Jobs) -> Iterable[Sequence[Value]]:
    lines = [(line, run.job_id) for run in _runs(jobs) for line in run.status.timeline]
    lines.sort(key=lambda item: -item[0].at)
    for line, job_id in lines:
        yield [_clock(line.at), job_id, line.matter, line.place, line.seen, line.decided, line.done, line.effect]


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")


def _transition_rows(jobs: Jobs) -> Iterable[Sequence[Value]]:
    steps = [(step, run.job_id) for run in _runs(jobs) for step in run.status.transitions]
    steps.sort(key=lambda item: -item[0].at)
    for step, job_id in steps:
        yield [_clock(step.at), job_id, step.source, state(step.target), step.reason]


def _move_rows(jobs: Jobs) -> Iterable[Sequence[Value]]:
    told = [(item, run.job_id) for run in _runs(jobs) for item in run.telling.history
            if item["type"] == "job.slots_moved"]
    told.sort(key=lambda pair: -pair[0]["at"])
    for item, job_id in told:
        data = item["data"]
        pause = "not known" if data["pause_ms"] is None else f"{data['pause_ms']:.0f} ms"
        yield [_clock(item["at"]), job_id, data["slots"], f"ps {data['source']}", f"ps {data['target']}", pause,
               data["reason"]]
