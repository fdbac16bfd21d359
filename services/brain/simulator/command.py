"""`recmesh simulate`: reads what is asked for, runs it once per planner, and reports."""

import argparse
import csv
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from recmesh.plugins.planning import INTERVAL_S, ClusterView, Resources
from recmesh.runtime.errors import CallerError, InvalidArgument, MeshError, Violation
from recmesh.runtime.progress import Progress
from services.brain.domain.warmstart import WarmStart
from services.brain.simulator import report
from services.brain.simulator.costs import Costs
from services.brain.simulator.engine import simulate
from services.brain.simulator.faults import Faults, Recovery
from services.brain.simulator.job import Job
from services.brain.simulator.metrics import course, figures
from services.brain.simulator.policies import policy_named
from services.brain.simulator.scenario import Outcome, Settings
from services.brain.simulator.tables import DLRM_LIKE, TRUTHS, truth_named
from services.brain.simulator.traces import TRACES, trace_named, window
from services.brain.simulator.truth import Truth
from services.brain.simulator.workload import jobs_of, paced

GIB = 1 << 30
NODES = "32x64x256"
PLANNERS = ("pareto-greedy", "optimus", "elastic-scheduler", "static", "tuned")

_EPILOG = """\
examples:
  recmesh simulate --jobs 300 --seed 7
  recmesh simulate --trace philly --truth dl2 --planner pareto-greedy --planner optimus --jobs 1000 --out report
  recmesh simulate --trace mine.csv --truth paper --nodes 8x32x128 --deaths .015 --json
  recmesh simulate --online server            # one online job; `--online server --help` lists its options

A trace of your own is CSV with a header, or one JSON object a line (.jsonl), with arrival_s, workers, duration_s and,
if you like, job_id, owner, model, deadline_s, priority. docs/reference/simulate.md says what is simulated, and how.
"""


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(
        prog="recmesh simulate", formatter_class=argparse.RawDescriptionHelpFormatter, epilog=_EPILOG,
        description="Run the planners of brain over a trace of jobs on a simulated cluster, and compare them.",
    )  # fmt: skip
    add = made.add_argument
    add(
        "--trace",
        default="philly",
        metavar="NAME",
        help=f"{', '.join(TRACES)}, or a .csv or .jsonl file (default: philly)",
    )
    add("--truth", default="dl2", metavar="NAME", help=f"how fast models are: {', '.join(TRUTHS)} (default: dl2)")
    add("--planner", action="append", default=[], metavar="NAME",
        help=f"again for each: {', '.join(PLANNERS)}, or one of an entry point; the first is compared with the others "
        "(default: pareto-greedy, optimus, elastic-scheduler, static)")  # fmt: skip
    add(
        "--jobs",
        type=int,
        default=1000,
        metavar="N",
        help="so many that came one after another; 0: all (default: 1000)",
    )
    add("--seed", type=int, default=0, metavar="N", help="of window, models, noise, faults and planners (default: 0)")
    add("--nodes", default="", metavar="NxCPUxGIB[xGPUS]",
        help=f"the cluster (default: {NODES}, and x8 more for models on GPUs)")  # fmt: skip
    add("--load", type=float, default=0.5, metavar="SHARE",
        help="stretch arrivals until what users ask for fills this share of the cores on average; 0: as in the trace "
        "(default: .5)")  # fmt: skip
    add("--models", default="", metavar="A,B", help=f"only these of the truth (default for dl2: {','.join(DLRM_LIKE)})")
    add("--longest", type=float, default=86_400.0, metavar="SECONDS", help="cut durations; 0: never (default: a day)")
    between = f"between two decisions (default: {INTERVAL_S:g})"
    add("--interval", type=float, default=INTERVAL_S, metavar="SECONDS", help=between)
    add("--epsilon", type=float, default=0.05, metavar="SHARE",
        help="pareto-greedy's: of throughput, what as much cost again must bring (default: .05)")  # fmt: skip
    add(
        "--first-plan",
        choices=("similar", "user"),
        default="similar",
        help="pareto-greedy's jobs begin with a plan from similar ones, or as users ask (default: similar)",
    )
    add("--take-back", action="store_true",
        help="pareto-greedy's changes that made a job slower are undone, as measured by its heartbeats")  # fmt: skip
    add("--stop-restart", default="", metavar="A..B",
        help="minutes for which the other planners stop a job at a change (default: as we do)")  # fmt: skip
    add("--checkpoint", default="600x.1", metavar="EVERYxSECONDS",
        help="how often a job saves its state, and for how long that stops it (default: 600x.1)")  # fmt: skip
    add("--deaths", type=float, default=0.0, metavar="P", help="probability that a process dies in a day (default: 0)")
    add(
        "--slow",
        type=float,
        default=0.0,
        metavar="P",
        help="probability that a worker becomes slow in a day (default: 0)",
    )
    add("--node-failures", type=float, default=0.0, metavar="P",
        help="probability that a node fails in a day, with all that it holds (default: 0)")  # fmt: skip
    add("--repair", type=float, default=3600.0, metavar="SECONDS",
        help="until a node that failed is back (default: 3600)")  # fmt: skip
    add(
        "--recovery",
        choices=[each.value for each in Recovery],
        default="elastic",
        help="after a death (default: elastic)",
    )
    add(
        "--noise",
        type=float,
        default=0.05,
        metavar="SD",
        help="of the logarithm of one heartbeat's rate (default: .05)",
    )
    add("--spread", type=float, default=0.1, metavar="SD",
        help="of the logarithm of a job's own speed, whatever its size (default: .1)")  # fmt: skip
    add(
        "--until", type=float, default=math.inf, metavar="SECONDS", help="stop then (default: when all jobs have ended)"
    )
    add("--data", type=Path, default=None, metavar="FOLDER", help="that holds jobs/ (default: $RECMESH_DATA)")
    add("--out", type=Path, default=None, metavar="FOLDER", help="write report.html, figures.json and jobs.csv here")
    add("--json", action="store_true", help="one JSON document instead of text")
    return made


@dataclass(frozen=True, slots=True)
class Study:
    """What is to be simulated, checked."""

    jobs: tuple[Job, ...]
    truth: Truth
    settings: Settings
    costs: Costs
    others_costs: Costs
    warm: WarmStart | None
    takes_back: bool
    planners: tuple[str, ...]


def main(argv: Sequence[str]) -> int:
    """Exit code: 0 done, 1 our fault, 2 the caller's."""
    options = parser().parse_args(argv)
    try:
        study = prepared(options)
        if options.out is not None:
            _make(options.out)
        with Progress("simulate", total=len(study.jobs) * len(study.planners), unit="jobs") as progress:
            outcomes = run(study, tell=lambda text: print(text, file=sys.stderr, flush=True), progress=progress)
        document = _document(options, study, outcomes)
        if options.out is not None:
            _write(options.out, options, study, outcomes, document)
    except MeshError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, CallerError) else 1
    try:
        _show(options, study, outcomes, document)
        sys.stdout.flush()
    except BrokenPipeError:         # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def prepared(options: argparse.Namespace) -> Study:
    """Reads and checks everything before anything runs; InvalidArgument names the option."""
    _check(options)
    data = options.data or Path(os.environ.get("RECMESH_DATA") or "../shared/data")
    planners = tuple(options.planner) or PLANNERS[:4]
    every_s, pause_s = checkpoints(options.checkpoint)
    costs = Costs(checkpoint_s=pause_s)
    others = replace(costs, stop_s=minutes(options.stop_restart)) if options.stop_restart else costs
    warm = WarmStart() if options.first_plan == "similar" else None
    for name in planners:
        policy_named(name, costs=costs)  # an unknown one is told before minutes of work
    truth = truth_named(options.truth, data)
    models = _models(options.models, truth)
    has_gpus = any(truth.facts(name).worker_gpus for name in models)
    options.nodes = options.nodes or (f"{NODES}x8" if has_gpus else NODES)
    nodes = nodes_of(options.nodes)
    rng = np.random.default_rng(options.seed)
    trace = window(trace_named(options.trace, data), options.jobs, rng)
    jobs = jobs_of(trace, truth, rng=rng, models=models, longest_s=options.longest, spread=options.spread)
    _check_nodes(jobs, nodes)
    if options.load:
        jobs = paced(jobs, truth, capacity_cpu=sum(node.cpu for node in nodes), load=options.load)
    faults = Faults(
        options.deaths, options.slow, node_failure_per_day=options.node_failures, repair_s=options.repair,
        recovery=Recovery(options.recovery), checkpoint_every_s=every_s,
    )  # fmt: skip
    settings = Settings(
        nodes, seed=options.seed, interval_s=options.interval, faults=faults, noise_sd=options.noise,
        until_s=options.until, view=ClusterView(0.0, Resources(), epsilon=options.epsilon),
    )  # fmt: skip
    return Study(tuple(jobs), truth, settings, costs, others, warm, options.take_back, planners)


def run(
    study: Study, *, tell: Callable[[str], None] | None = None, progress: Progress | None = None
) -> dict[str, Outcome]:
    """One run per planner, all over the same jobs, faults and noise."""
    outcomes: dict[str, Outcome] = {}
    told = progress or Progress("simulate")
    for name in study.planners:
        before = len(outcomes) * len(study.jobs)
        told.update(before, note=name)
        began = time.perf_counter()
        costs = study.costs if name in ("pareto-greedy", "tuned") else study.others_costs
        policy = policy_named(name, costs=costs, warm=study.warm, takes_back=study.takes_back)
        outcomes[name] = simulate(
            study.jobs, study.truth, policy, study.settings,
            tell=lambda ended, before=before: told.update(before + ended),  # type: ignore[misc]  # a default binds it
        )
        if tell is not None:
            took = time.perf_counter() - began
            tell(f"{name}: {len(study.jobs):,} jobs, {outcomes[name].decisions:,} decisions, {took:.1f} s")
    return outcomes


def nodes_of(text: str) -> tuple[Resources, ...]:
    """`NxCPUxGIB[xGPUS]`, more of them after commas."""
    nodes: list[Resources] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)x(\d+(?:\.\d+)?)x(\d+(?:\.\d+)?)(?:x(\d+))?", part.strip())
        if match is None or not int(match[1]) or not float(match[2]):
            raise InvalidArgument(
                "the cluster is not understood",
                violations=[Violation("--nodes", f"{part!r} is not NxCPUxGIB or NxCPUxGIBxGPUS, like 32x64x256")],
            )
        gpus = {"gpu": float(match[4])} if match[4] else {}
        nodes += [Resources(float(match[2]), float(match[3]) * GIB, gpus)] * int(match[1])
    return tuple(nodes)


def minutes(text: str) -> tuple[float, float]:
    """`A..B` minutes in seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\.\.(\d+(?:\.\d+)?)", text)
    if match is None or float(match[1]) > float(match[2]):
        reason = f"{text!r} is not two numbers of minutes, the smaller one first, like 10..30"
        raise InvalidArgument("the restart cost is not understood", violations=[Violation("--stop-restart", reason)])
    return 60.0 * float(match[1]), 60.0 * float(match[2])


def checkpoints(text: str) -> tuple[float, float]:
    """`EVERYxSECONDS`."""
    match = re.fullmatch(r"(\d*\.?\d+)x(\d*\.?\d+)", text)
    if match is None or not float(match[1]):
        reason = f"{text!r} is not a number of seconds above 0, x, and how long one stops training, like 600x.1"
        raise InvalidArgument("checkpoints are not understood", violations=[Violation("--checkpoint", reason)])
    return float(match[1]), float(match[2])


def _check(options: argparse.Namespace) -> None:
    rules: list[tuple[str, bool, str]] = [
        ("--jobs", options.jobs >= 0, "must be 0 or more"),
        ("--seed", options.seed >= 0, "must be 0 or more"),
        ("--load", 0 <= options.load <= 100, "must be a share from 0"),
        ("--longest", options.longest >= 0, "must be 0 or more seconds"),
        ("--interval", 0 < options.interval < math.inf, "must be a number of seconds above 0"),
        ("--deaths", 0 <= options.deaths < 1, "must be a probability below 1"),
        ("--node-failures", 0 <= options.node_failures < 1, "must be a probability below 1"),
        ("--repair", 0 < options.repair < math.inf, "must be a number of seconds above 0"),
        ("--slow", 0 <= options.slow < 1, "must be a probability below 1"),
        ("--noise", options.noise >= 0, "must be 0 or more"),
        ("--spread", options.spread >= 0, "must be 0 or more"),
        ("--epsilon", 0 < options.epsilon < 1, "must be a share above 0 and below 1"),
        ("--until", options.until > 0, "must be above 0 seconds"),
        ("--planner", len(set(options.planner)) == len(options.planner), "names a planner twice"),
    ]
    violations = [Violation(field, reason) for field, right, reason in rules if not right]
    if violations:
        raise InvalidArgument("cannot simulate", violations=violations)


def _models(text: str, truth: Truth) -> tuple[str, ...]:
    if not text:
        return DLRM_LIKE if truth.name == "dl2" else truth.models
    named = tuple(name.strip() for name in text.split(","))
    unknown = [name for name in named if name not in truth.models]
    if unknown:
        reason = f"{unknown[0]!r} is not a model of {truth.name}, which has {', '.join(truth.models)}"
        raise InvalidArgument("cannot simulate", violations=[Violation("--models", reason)])
    return named


def _check_nodes(jobs: Sequence[Job], nodes: Sequence[Resources]) -> None:
    """A process that fits no node would wait for ever."""
    for model, asked in {job.facts.model: job.asked for job in jobs}.items():
        gpus = {asked.gpu_kind: asked.worker_gpus} if asked.worker_gpus else {}
        worker = Resources(asked.worker_cpu, float(asked.worker_memory_bytes), gpus)
        if not any(worker.within(node) for node in nodes):
            needs = f"{asked.worker_cpu:g} cores and {asked.worker_memory_bytes / GIB:g} GiB"
            needs += f", {asked.worker_gpus:g} GPU (for example 32x64x256x8)" if gpus else ""
            reason = f"no node holds a worker of {model}, which needs {needs}"
            raise InvalidArgument("cannot simulate", violations=[Violation("--nodes", reason)])


def _show(options: argparse.Namespace, study: Study, outcomes: Mapping[str, Outcome], document: object) -> None:
    if options.json:
        print(json.dumps(document, indent=2))
        return
    found = {name: figures(outcome) for name, outcome in outcomes.items()}
    print(report.table(report.COLUMNS, report.rows(found)))
    print()
    for sentence in report.against(outcomes):
        print(sentence)
    unended = {name: each.jobs - each.ended for name, each in found.items() if each.ended < each.jobs}
    for name, count in unended.items():
        print(f"{name}: {count:,} of {len(study.jobs):,} jobs did not succeed; mean JCT is of the others")
    for name, each in found.items():
        if each.no_node:
            print(f"{name}: {each.no_node:,} sizes fitted the sum of what was free and no nodes, and were refused")
    if options.out is not None:
        print(f"\nPlots in {options.out / 'report.html'}")


def _setting(options: argparse.Namespace, study: Study) -> dict[str, str]:
    named = {key: value for key, value in vars(options).items() if key not in ("json", "out", "data", "planner")}
    models = sorted({job.facts.model for job in study.jobs})
    return {
        **{key.replace("_", "-"): str(value) for key, value in named.items()},
        "models": ", ".join(models), "planner": ", ".join(study.planners), "jobs": f"{len(study.jobs):,}",
    }  # fmt: skip


def _document(options: argparse.Namespace, study: Study, outcomes: Mapping[str, Outcome]) -> dict[str, object]:
    planners = {}
    for name, outcome in outcomes.items():
        over_time = course(outcome, spans=100)
        planners[name] = {
            **figures(outcome).document(), "decisions": outcome.decisions, "reasons": outcome.reasons,
            "course": {"at_s": over_time.at_s.round(1).tolist(), "held": over_time.held.round(4).tolist(),
                       "used": over_time.used.round(4).tolist()},
        }  # fmt: skip
    return {"setting": _setting(options, study), "planners": planners, "against": report.against(outcomes)}


def _make(folder: Path) -> None:
    """Before the simulation, which may take an hour."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgument(
            f"cannot write the report: {error}", violations=[Violation("--out", str(folder))]
        ) from error


def _write(
    folder: Path, options: argparse.Namespace, study: Study, outcomes: Mapping[str, Outcome], document: object
) -> None:
    try:
        title = f"{len(study.jobs):,} jobs of {options.trace} on {options.nodes}"
        (folder / "report.html").write_text(report.page(title, outcomes, _setting(options, study)), encoding="utf-8")
        (folder / "figures.json").write_text(json.dumps(document, indent=2), encoding="utf-8")
        with (folder / "jobs.csv").open("w", encoding="utf-8", newline="") as file:
            _write_jobs(csv.writer(file), outcomes)
    except OSError as error:
        raise InvalidArgument(
            f"cannot write the report: {error}", violations=[Violation("--out", str(folder))]
        ) from error


def _write_jobs(writer: Any, outcomes: Mapping[str, Outcome]) -> None:
    writer.writerow(
        ["planner", "job_id", "model", "owner", "outcome", "arrival_s", "started_s", "ended_s", "samples",
         "asked_workers", "asked_ps", "first_workers", "first_ps", "last_workers", "last_ps", "changes", "taken_back",
         "paused_s", "faults", "lost_samples"]
    )  # fmt: skip
    for name, outcome in outcomes.items():
        for run in outcome.runs:
            asked, first, last = run.job.asked, run.first, run.allocation
            writer.writerow(
                [name, run.job.job_id, run.job.facts.model, run.job.owner, run.phase.value, round(run.job.arrival_s, 1),
                 _rounded(run.started), _rounded(run.ended), round(run.job.samples), asked.workers, asked.ps,
                 first.workers if first else "", first.ps if first else "", last.workers if last else "",
                 last.ps if last else "", run.changes, run.taken_back, round(run.paused_s, 1), run.faults,
                 round(run.lost)]
            )  # fmt: skip


def _rounded(at: float) -> str:
    return "" if math.isnan(at) else f"{at:.1f}"
