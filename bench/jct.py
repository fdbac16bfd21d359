"""Mean job completion time of `pareto-greedy` against its peers, in the simulator, on measured throughputs.

DLRM-like parameter-server jobs: arrivals, start sizes and lengths from Philly, speeds from DL2's measurements.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.figures import Result
from recmesh.plugins.planning import ClusterView, Resources
from services.brain.domain.warmstart import WarmStart
from services.brain.simulator.costs import Costs
from services.brain.simulator.engine import simulate
from services.brain.simulator.faults import Faults, Recovery
from services.brain.simulator.job import Job, TraceJob
from services.brain.simulator.metrics import Figures, figures
from services.brain.simulator.policies import policy_named
from services.brain.simulator.scenario import Settings
from services.brain.simulator.tables import DLRM_LIKE, truth_named
from services.brain.simulator.traces import trace_named, window
from services.brain.simulator.truth import Truth
from services.brain.simulator.workload import jobs_of, paced

JOBS, QUICK_JOBS = 250, 120
SEEDS, QUICK_SEEDS = 10, 2
NODES = (Resources(64.0, 256.0 * (1 << 30)),) * 32
LOAD = 0.5
LONGEST_S = 86_400.0
SPREAD = 0.1
PEERS_STOP_S = (600.0, 1800.0)
DEATH_PER_DAY = 0.015
EPSILON = 0.02
"""Of `pareto-greedy`, below its default of .05: a completion time is judged here, and no bill."""
STUDENT_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""t(.975, n − 1)."""

OURS, OPTIMUS, ES, TUNED, STATIC = "pareto-greedy", "optimus", "elastic-scheduler", "tuned", "static"


@dataclass(frozen=True, slots=True)
class _World:
    truth: Truth
    trace: list[TraceJob]
    jobs: int


def data() -> Path:
    """$RECMESH_DATA, or ../shared/data beside this repository."""
    return Path(os.environ.get("RECMESH_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")


def run(*, quick: bool) -> Result:
    """Reductions are 1 − (our mean JCT / theirs), means over seeds, with 95 % intervals over paired seeds.

    `bound_*` is what the oracle `tuned` reaches: it knows every speed, and starts at the best size. `*_stop`: the peers
    stop a job for 10 to 30 min at each change, as their papers' implementations do. `*_dssm`: of dssm alone. `*_alone`:
    without first plans and models from like jobs. `*_judged`: changes that made a job slower, by its heartbeats, are
    undone. `*_faults`: a process dies in a day with probability .015.
    """
    seeds = range(1, (QUICK_SEEDS if quick else SEEDS) + 1)
    world = _World(truth_named("dl2", data()), trace_named("philly", data()), QUICK_JOBS if quick else JOBS)
    found: dict[str, float] = {}
    main = [_all(world, seed, (OURS, OPTIMUS, ES, TUNED, STATIC)) for seed in seeds]
    found |= _reductions(main, "", ((OPTIMUS, "optimus"), (ES, "es"), (STATIC, "static")))
    found |= _interval("excess_vs_tuned", [each[OURS].jct_mean_s / each[TUNED].jct_mean_s - 1.0 for each in main])
    found |= _means(main, "bound_vs_{}", TUNED, lambda figure: figure.jct_mean_s)
    found |= _means(main, "median_reduction_vs_{}", OURS, lambda figure: figure.jct_median_s)
    found |= {f"cur_{_short(name)}": _mean([each[name].cur for each in main]) for name in (OURS, OPTIMUS, ES, STATIC)}
    stopping = [_all(world, seed, (OPTIMUS, ES), stop=True) for seed in seeds]
    found |= _reductions([mine | theirs for mine, theirs in zip(main, stopping, strict=True)], "_stop",
                         ((OPTIMUS, "optimus"), (ES, "es")))  # fmt: skip
    alone = [_all(world, seed, (OURS,), warm=False) for seed in seeds]
    found |= _reductions([theirs | mine for theirs, mine in zip(main, alone, strict=True)], "_alone",
                         ((OPTIMUS, "optimus"), (ES, "es")))  # fmt: skip
    judged = [_all(world, seed, (OURS,), takes_back=True) for seed in seeds]
    found |= _reductions([theirs | mine for theirs, mine in zip(main, judged, strict=True)], "_judged",
                         ((OPTIMUS, "optimus"), (ES, "es")))  # fmt: skip
    excess = [mine[OURS].jct_mean_s / each[TUNED].jct_mean_s - 1.0 for each, mine in zip(main, judged, strict=True)]
    found |= _interval("excess_vs_tuned_judged", excess)
    dssm = [_all(world, seed, (OURS, OPTIMUS, ES, TUNED), models=("dssm",)) for seed in seeds]
    found |= _reductions(dssm, "_dssm", ((OPTIMUS, "optimus"), (ES, "es")))
    found |= _means(dssm, "bound_vs_{}_dssm", TUNED, lambda figure: figure.jct_mean_s)
    excess = [each[OURS].jct_mean_s / each[TUNED].jct_mean_s - 1.0 for each in dssm]
    found |= _interval("excess_vs_tuned_dssm", excess)
    found |= _with_faults(world, seeds)
    return Result("jct", found, _context(world, seeds))


def _all(
    world: _World, seed: int, names: Sequence[str], *, models: Sequence[str] = DLRM_LIKE, stop: bool = False,
    warm: bool = True, faults: Faults = Faults(), takes_back: bool = False,  # noqa: B008 - frozen
) -> dict[str, Figures]:  # fmt: skip
    """Each planner over the same jobs with the same noise and faults."""
    jobs = _jobs(world, seed, models)
    settings = Settings(NODES, seed=seed, faults=faults, view=ClusterView(0.0, Resources(), epsilon=EPSILON))
    found: dict[str, Figures] = {}
    for name in names:
        costs = Costs(stop_s=PEERS_STOP_S) if stop else Costs()
        policy = policy_named(name, costs=costs, warm=WarmStart() if warm else None, takes_back=takes_back)
        found[name] = figures(simulate(jobs, world.truth, policy, settings))
    return found


def _jobs(world: _World, seed: int, models: Sequence[str]) -> list[Job]:
    rng = np.random.default_rng(seed)
    trace = window(world.trace, world.jobs, rng)
    jobs = jobs_of(trace, world.truth, rng=rng, models=models, longest_s=LONGEST_S, spread=SPREAD)
    return paced(jobs, world.truth, capacity_cpu=sum(node.cpu for node in NODES), load=LOAD)


def _with_faults(world: _World, seeds: Sequence[int]) -> dict[str, float]:
    """Ours recovers elastically; `static` is what a job without that gets: any death restarts it, thrice at most."""
    elastic = Faults(DEATH_PER_DAY, DEATH_PER_DAY)
    restart = Faults(DEATH_PER_DAY, DEATH_PER_DAY, recovery=Recovery.RESTART)
    never = Faults(DEATH_PER_DAY, DEATH_PER_DAY, recovery=Recovery.NONE)
    ours = [_all(world, seed, (OURS, ES, OPTIMUS), faults=elastic) for seed in seeds]
    found = _reductions(ours, "_faults", ((OPTIMUS, "optimus"), (ES, "es")))
    judged = {"ours": [each[OURS] for each in ours]}
    for label, rule in (("static_restart", restart), ("static_none", never)):
        judged[label] = [_all(world, seed, (STATIC,), faults=rule)[STATIC] for seed in seeds]
    for label, runs in judged.items():
        for figure in ("jcr", "jcr_small", "jcr_large", "cur", "mur"):
            values = [float(getattr(each, figure)) for each in runs]
            if not all(map(math.isnan, values)):
                found[f"{figure}_{label}"] = float(np.nanmean(values))
    return found


def _reductions(
    runs: Sequence[Mapping[str, Figures]], suffix: str, peers: Sequence[tuple[str, str]]
) -> dict[str, float]:
    found: dict[str, float] = {}
    for peer, short in peers:
        values = [1.0 - each[OURS].jct_mean_s / each[peer].jct_mean_s for each in runs]
        found |= _interval(f"reduction_vs_{short}{suffix}", values)
    return found


def _means(runs: Sequence[Mapping[str, Figures]], name: str, mine: str, figure: Any) -> dict[str, float]:
    return {
        name.format(short): _mean([1.0 - figure(each[mine]) / figure(each[peer]) for each in runs])
        for peer, short in ((OPTIMUS, "optimus"), (ES, "es"))
    }


def _interval(name: str, values: Sequence[float]) -> dict[str, float]:
    """The mean, and the ends of its 95 % interval."""
    mean = _mean(values)
    half = STUDENT_95[len(values)] * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return {name: mean, f"{name}_low": mean - half, f"{name}_high": mean + half}


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _short(name: str) -> str:
    return {OURS: "ours", ES: "es"}.get(name, name)


def _context(world: _World, seeds: Sequence[int]) -> dict[str, Any]:
    costs = Costs()
    return {
        "jobs_per_seed": world.jobs,
        "seeds": list(seeds), "trace": "philly", "truth": "dl2", "models": list(DLRM_LIKE),
        "nodes": f"{len(NODES)} of {NODES[0].cpu:g} cores", "load": LOAD, "longest_s": LONGEST_S,
        "speed_spread": SPREAD,
        "epsilon": EPSILON,
        "costs": f"start {costs.start_s:g} s, pause {costs.workers_s:g} s (workers) or {costs.ps_s:g} s (PS), for all",
        "peers": "±1 worker (elastic-scheduler) or ±1 worker or PS (optimus) per 180 s, with our throughput models",
        "stop": "10 to 30 min per change for the peers alone",
        "faults": f"death and slowness each {DEATH_PER_DAY} per process and day",
    }  # fmt: skip
