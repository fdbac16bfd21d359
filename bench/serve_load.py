"""Requests per second that a server answers in time on a core: a model whole, in halves, and on KServe's Python server.

A Wide & Deep of less than a millisecond (26 ids, 13 numbers), REST with binary tensors and with JSON, 1 and 32 samples
per request. All processes of a server (of recmesh: gateway and model servers) share one core, whatever the machine has;
the load comes from half of its cores, others than that, open loop: times are drawn beforehand (Poisson), latency
counts from the drawn time, so a server that falls behind cannot slow its load down. The servers take turns, load by
load. KServe's server (`RECMESH_BENCH_KSERVE_PYTHON`, an environment with `kserve`) runs the same program with the same
torch.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.figures import Result
from bench.gateway import gateway
from bench.mesh import say, scratch
from bench.offered_load import SLO_S, Offered, Target, cores, offer
from bench.peers.kserve import PYTHON, kserve, python
from bench.workloads import wide_deep
from recmesh.serving.split.partition import partition

SECONDS, QUICK_SECONDS = 5.0, 3.0
WARM_UP_S = 1.0
BEGIN = "RECMESH_BENCH_BEGIN_RPS"
BEGIN_RPS, STEP, FINE_STEP = 150.0, 1.5, 1.15
MOST_RPS = 20_000.0
IN_TIME = 0.99
"""Of requests must be answered within 25 ms: p99 ≤ 25 ms, with refusals and losses as late."""
SERVING: Mapping[str, dict[str, Any]] = {
    "monolith": {"split": "never", "max_batch_size": 64},
    "unbatched": {"split": "never"},
    "split": {"split": "always", "max_batch_size": 64},
}
"""By the name of the model; `unbatched` runs request by request, as KServe's server does."""
CASES = {"b1": (1, True), "b32": (32, True), "json_b1": (1, False)}
"""Samples per request, and whether tensors are binary."""


@dataclass(frozen=True, slots=True)
class Step:
    """One load, and what came of it."""

    rate: float
    found: Offered
    """Without its first second."""
    per_cpu_s: float
    """Answers per CPU second of all of the server's processes."""

    @property
    def shown(self) -> list[float]:
        """A line of the curve."""
        found = self.found
        return [
            round(value, 2) for value in (
                self.rate, found.goodput(), found.percentile_ms(50), found.percentile_ms(99), self.per_cpu_s,
                1e3 * found.late_s,
            )
        ]  # fmt: skip


def server_core() -> str:
    """One: KServe's server has one worker, which would leave the other cores of a half idle."""
    return cores()[0].partition(",")[0]


def begin_rps() -> float:
    """The least load; of `RECMESH_BENCH_BEGIN_RPS` where a server is known to keep more."""
    return float(os.environ.get(BEGIN, BEGIN_RPS))


Servers = dict[str, tuple[Target, int]]
"""By name: whom to ask, and the process whose children are all of the server."""


def run(*, quick: bool) -> Result:
    """By case and server: `rps_*`, the most offered load of which p99 ≤ 25 ms; `p50_ms_*` and `p99_ms_*` at half of
    it; `cpu_us_*`, of all the server's processes per request, there; `per_cpu_s_*`: answers per CPU second of them at
    the first load that was too much, which other work on the machine changes least. `rps_ratio_vs_kserve` (goal ≥ 3)
    and `cpu_ratio_vs_kserve` are `monolith`'s in case b1."""
    seconds = QUICK_SECONDS if quick else SECONDS
    cases = {name: CASES[name] for name in (("b1",) if quick else tuple(CASES))}
    figures: dict[str, float] = {}
    curves: dict[str, Any] = {}
    with scratch() as folder, _servers(folder) as servers:
        for case, (rows, binary) in cases.items():
            found = _case(servers, folder, seconds=seconds, rows=rows, binary=binary, quick=quick)
            for name, (curve, summary) in found.items():
                curves[f"{name}_{case}"] = curve
                figures |= {f"{key}_{name}_{case}": value for key, value in summary.items()}
                if name != "kserve" and "kserve" in found:
                    rates = summary["rps"], found["kserve"][1]["rps"]
                    figures[f"rps_ratio_vs_kserve_{name}_{case}"] = rates[0] / max(1.0, rates[1])
                    per_cpu = [each.get("per_cpu_s", 0.0) for each in (summary, found["kserve"][1])]
                    figures[f"cpu_ratio_vs_kserve_{name}_{case}"] = per_cpu[0] / max(1.0, per_cpu[1])
        present = sorted(servers)
    if "kserve" in present:
        for ratio in ("rps_ratio_vs_kserve", "cpu_ratio_vs_kserve"):
            figures[ratio] = figures[f"{ratio}_monolith_b1"]
    return Result("serve_load", figures, {
        "server_cores": server_core(), "load_cores": cores()[1], "begin_rps": begin_rps(), "seconds_each": seconds,
        "slo_ms": 1e3 * SLO_S,
        "serving": dict(SERVING), "curves": curves,
        "curves_are": "offered per s; in 25 ms, per s; p50 ms; p99 ms (-1: of failed ones); answers per CPU second; "
        "ms by which the latest request went out late",
        "skipped": "" if "kserve" in present else f"KServe's server: {PYTHON} is not set",
        "quick": f"case b1 alone, {QUICK_SECONDS:g} s each instead of {SECONDS:g}, coarser" if quick else "",
    })  # fmt: skip


@contextlib.contextmanager
def _servers(folder: Path) -> Iterator[Servers]:
    made = folder / "storage" / "models" / "monolith" / "1"
    wide_deep.write(made)
    split = partition(made)
    say(f"split: {split.manifest.why}")
    for name in SERVING:
        wide_deep.write(made.parents[1] / name / "1", serving=SERVING[name])
    partition(made.parents[1] / "split" / "1")
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(gateway(folder, cores=server_core()))
        servers: Servers = {}
        for name in SERVING:
            ours.serve(name, "torch")
            servers[name] = (Target(ours.http, name), ours.pid)
        if python():
            servers["kserve"] = stack.enter_context(_kserve(made, folder))
        yield servers


@contextlib.contextmanager
def _kserve(model: Path, folder: Path) -> Iterator[tuple[Target, int]]:
    with kserve(model, folder, cores=server_core()) as server:
        target = Target(server.http, server.model)
        found = offer(target, folder, rate=20, seconds=1, rows=1, binary=True)
        if found.failed:
            raise RuntimeError(f"KServe's server answers {sorted(set(found.status.tolist()))}")
        yield target, server.pid


def _case(
    servers: Servers, folder: Path, *, seconds: float, rows: int, binary: bool, quick: bool
) -> dict[str, tuple[list[list[float]], dict[str, float]]]:
    """The loads that each server is offered and what comes of them; and the most that it keeps p99 at."""
    curves: dict[str, list[list[float]]] = {name: [] for name in servers}
    best = dict.fromkeys(servers, 0.0)
    going = set(servers)
    rate = begin_rps()

    def ask(name: str, rate: float) -> Step:
        target, pid = servers[name]
        before = _cpu_s(pid)
        offered = offer(target, folder, rate=rate, seconds=WARM_UP_S + seconds, rows=rows, binary=binary)
        answered = float((offered.status == 200).sum())
        step = Step(rate, offered.after(WARM_UP_S), answered / max(1e-9, _cpu_s(pid) - before))
        curves[name].append(step.shown)
        say(f"  {name}, {rows} samples, {'binary' if binary else 'json'}: {step.shown}")
        return step

    behind: dict[str, Step] = {}
    while going and rate < MOST_RPS:             # coarsely up to where each falls behind
        for name in sorted(going):
            step = ask(name, rate)
            if step.found.share_in_time() >= IN_TIME:
                best[name] = rate
            else:
                behind[name] = step
                going.discard(name)
        rate *= STEP
    for name in servers if not quick else ():    # then in small steps
        rate = best[name] * FINE_STEP
        while 0 < rate < best[name] * STEP and (step := ask(name, rate)).found.share_in_time() >= IN_TIME:
            best[name] = rate
            rate *= FINE_STEP
    summaries: dict[str, dict[str, float]] = {}
    for name in servers:
        half = ask(name, max(begin_rps() / 2, best[name] / 2))
        summaries[name] = {
            "rps": best[name], "p50_ms": half.found.percentile_ms(50), "p99_ms": half.found.percentile_ms(99),
            "cpu_us": 1e6 / half.per_cpu_s,
        }  # fmt: skip
        if name in behind:
            summaries[name]["per_cpu_s"] = behind[name].per_cpu_s
    return {name: (curves[name], summaries[name]) for name in servers}


def _cpu_s(pid: int) -> float:
    """Of a process and all below it."""
    process = psutil.Process(pid)
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return float(sum(item.user + item.system for item in times))
