"""Requests per second that a node with 8 GPUs answers in 25 ms, as HNs of split models and with whole models on it.

Simulated. Measured here: what a DLRM with attention (3.9 MiB from CN to HN) takes of a CPU in its sparse half, in its
dense half, and in the HN's process around that. Taken from elsewhere, and named in the context: how much faster a GPU
runs the dense half (no GPU was there), the node (96 cores, 8 GPUs), the transfer's time (Prism, NSDI 2025), how many
cores a service asks for beside its GPU (48, or what the applications of Alibaba's DLRM serving trace ask for).
A request passes its cores, the link (of a split model), and its GPU, each first come first served; arrivals are
Poisson. A request's work on CPU is shared by all cores of its service without loss, which favours the whole model.
"""

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np

from bench.criteo import DataMissing
from bench.figures import Result
from bench.mesh import say, scratch
from bench.serve_overhead import cpu_ns, process, remote
from bench.workloads import attentive, openb
from recmesh.serving import halves
from recmesh.serving.cn import model as cn_models
from recmesh.serving.programs import framework
from recmesh.serving.transport.endpoints import Endpoint

REQUESTS, QUICK_REQUESTS = 100, 15
ARRIVALS, QUICK_ARRIVALS = 40_000, 8_000
SLO_S = 0.025
IN_TIME = 0.99
NODE_CORES, NODE_GPUS, NODE_GIB = 96, 8, 1024
"""The node of MATH §4; its memory is our assumption."""
SERVICE_CORES = 48
HN_CORES = 8
"""Of an HN: the trace's most frequent, inside Prism's 4 to 12."""
SLICES, SLICE_SHARE = 24, 2 / 7
"""HNs on MIG slices 2g.20gb: of a node, and how much of a GPU each is."""
TRANSFER_S, LATE_TRANSFER_S = 0.003, 0.006
"""Prism's bounds on the median and the 99th percentile for 4 MiB."""
SPEEDUPS = (10.0, 20.0, 40.0)
SPEEDUP = 20.0
"""Of the figures without a suffix."""

T = TypeVar("T")
Times = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Phases:
    """Milliseconds on one core, medians."""

    sparse_ms: float
    dense_ms: float
    hn_around_ms: float
    """The HN's process around the dense half: receiving, answering."""


@dataclass(frozen=True, slots=True)
class Service:
    """What one request takes of each stage of one instance, in seconds."""

    cpu_s: float
    gpu_s: float
    hn_cpu_s: float = 0.0
    transferred: bool = False

    def latencies(self, arrivals: Times) -> Times:
        """Of requests that come at these times."""
        done = served(arrivals, self.cpu_s)
        if self.transferred:
            spent = np.full(len(arrivals), TRANSFER_S)
            spent[::50] = LATE_TRANSFER_S
            done = np.maximum.accumulate(done + spent)
            done = served(done, self.hn_cpu_s)
        return served(done, self.gpu_s) - arrivals

    def rate(self, count: int) -> float:
        """The most requests per second of which 99 % are answered in 25 ms."""
        gaps = np.random.default_rng(1).exponential(1.0, count)
        low, high = 0.0, 1 / max(self.cpu_s, self.gpu_s, self.hn_cpu_s)
        for _ in range(20):
            rate = (low + high) / 2
            in_time = (self.latencies(np.cumsum(gaps / rate)) <= SLO_S).mean()
            low, high = (rate, high) if in_time >= IN_TIME else (low, rate)
        return low


def run(*, quick: bool) -> Result:
    """`gpu_node_goodput_ratio`: a node of HNs on whole GPUs against two whole services of 48 cores and a GPU, the most
    that fits; `_ceiling`: by counts alone. `_slices`: HNs on MIG slices. `_trace`: for the trace's applications, nodes
    with whole models for the rate of one with HNs (`_median`, `_p10`, `_p90` of applications). `hn_cpu_share`: the
    HN's of a request's CPU time but for the dense half, here; and of the cores that the trace's services ask for.
    """
    phases = _measured(QUICK_REQUESTS if quick else REQUESTS)
    count = QUICK_ARRIVALS if quick else ARRIVALS
    say(f"  {phases}")
    figures: dict[str, float] = {
        **asdict(phases),
        "hn_cpu_share": phases.hn_around_ms / (phases.sparse_ms + phases.hn_around_ms),
        "whole_services_per_node": float(min(NODE_GPUS, NODE_CORES // SERVICE_CORES)),
        "gpus_stranded": float(NODE_GPUS - min(NODE_GPUS, NODE_CORES // SERVICE_CORES)),
        "hns_per_node": float(min(NODE_GPUS, NODE_CORES // HN_CORES)),
        "gpu_node_goodput_ratio_ceiling": NODE_GPUS / (NODE_CORES // SERVICE_CORES),
    }
    for speedup in SPEEDUPS:
        found = _node(phases, speedup, count)
        suffix = "" if speedup == SPEEDUP else f"_gpu_{speedup:g}x"
        figures |= {name + suffix: value for name, value in found.items()}
    context = {
        "measured_here": "sparse_ms, dense_ms, hn_around_ms", "slo_ms": 1e3 * SLO_S,
        "taken": {
            "gpu_speedup": f"{SPEEDUP:g} (an assumption; others beside it)", "node_cores": NODE_CORES,
            "node_gpus": NODE_GPUS, "node_gib": f"{NODE_GIB} (an assumption)", "service_cores": SERVICE_CORES,
            "hn_cores": HN_CORES, "transfer_ms": [1e3 * TRANSFER_S, 1e3 * LATE_TRANSFER_S],
            "cpu_work": "a whole service keeps its cores as busy as its GPU: it asks for as many as it needs",
        },
        "requests": QUICK_REQUESTS if quick else REQUESTS, "arrivals": count,
        "quick": f"{QUICK_ARRIVALS:,} arrivals instead of {ARRIVALS:,}" if quick else "",
    }  # fmt: skip
    try:
        figures |= _trace(phases, count)
    except DataMissing as missing:
        context["missing"] = str(missing)
    return Result("gpu_node", figures, context)


def _measured(count: int) -> Phases:
    sparse_ns, dense_ns, hn_ns = [], [], []
    with scratch() as folder, ExitStack() as stack:
        model = attentive.write(folder / "model")
        chosen, _ = framework("torch")
        sparse = cn_models.load(attentive.KEY, model, threads=1)
        dense = chosen.load(model / "split" / "dense", halves.part(model / "split" / "dense").card)
        endpoint = Endpoint("unix", str(folder / "hn"))
        pid = stack.enter_context(process("recmesh.serving.hn", model, "--listen", str(endpoint)))
        asked = remote(sparse, endpoint, stack)
        for index in range(count + 3):
            request = attentive.inputs(index)
            known, sparse_spent = _timed(lambda: sparse.prepare(request))                    # noqa: B023 (runs at once)
            _, dense_spent = _timed(lambda: dense.run({name: known[name] for name in sparse.dense.inputs}))  # noqa: B023
            before = cpu_ns((pid,))
            asked(request)
            time.sleep(0.002)                    # what the process does after its answer is its work, too
            spent = cpu_ns((pid,)) - before
            if index >= 3:
                sparse_ns.append(sparse_spent)
                dense_ns.append(dense_spent)
                hn_ns.append(max(0, spent - dense_spent))
    return Phases(*(statistics.median(each) / 1e6 for each in (sparse_ns, dense_ns, hn_ns)))


def _timed(work: Callable[[], T]) -> tuple[T, int]:
    before = time.thread_time_ns()
    made = work()
    return made, time.thread_time_ns() - before


def served(arrivals: Times, each_s: float) -> Times:
    """When requests leave a stage that takes so long for each, one after another (Lindley's recursion)."""
    if not each_s:
        return arrivals
    steps = np.arange(len(arrivals)) * each_s
    left: Times = np.maximum.accumulate(arrivals - steps) + steps + each_s
    return left


def _node(phases: Phases, speedup: float, count: int) -> dict[str, float]:
    gpu_s = phases.dense_ms / 1e3 / speedup
    hn_cpu_s = phases.hn_around_ms / 1e3 / HN_CORES
    cpu_s = gpu_s                                # 48 cores keep one GPU busy, and are kept busy by it
    whole = Service(cpu_s, gpu_s).rate(count)
    hn = Service(cpu_s, gpu_s, hn_cpu_s, transferred=True).rate(count)
    sliced = Service(
        cpu_s, gpu_s / SLICE_SHARE, phases.hn_around_ms / 1e3 / (NODE_CORES / SLICES), transferred=True
    ).rate(count)
    services = min(NODE_GPUS, NODE_CORES // SERVICE_CORES)
    return {
        "rps_whole_service": whole, "rps_hn": hn, "rps_hn_slice": sliced,
        "rps_node_whole": services * whole, "rps_node_hn": min(NODE_GPUS, NODE_CORES // HN_CORES) * hn,
        "gpu_node_goodput_ratio": min(NODE_GPUS, NODE_CORES // HN_CORES) * hn / (services * whole),
        "gpu_node_goodput_ratio_slices": SLICES * sliced / (services * whole),
    }  # fmt: skip


def _trace(phases: Phases, count: int) -> dict[str, float]:
    """The trace's applications: whole services as many as cores, memory and GPUs of a node hold, at least one with all
    of its cores; HNs likewise."""
    gpu_s = phases.dense_ms / 1e3 / SPEEDUP
    ratios: list[float] = []
    nodes_whole = nodes_split = 0.0
    left_out = 0
    needs = openb.serving_needs()
    for need in needs:
        if need.whole_gib > NODE_GIB:
            left_out += need.instances
            continue
        services = max(1, int(min(NODE_GPUS, NODE_CORES // need.whole_cores, NODE_GIB // need.whole_gib)))
        cores = min(need.whole_cores, NODE_CORES)
        whole = Service(gpu_s * need.whole_cores / cores, gpu_s).rate(count // 4)
        hns = int(min(NODE_GPUS, NODE_CORES // need.hn_cores, NODE_GIB // need.hn_gib))
        hn = Service(gpu_s, gpu_s, phases.hn_around_ms / 1e3 / need.hn_cores, transferred=True).rate(count // 4)
        if not whole or not hns:
            left_out += need.instances
            continue
        ratios.append(hns * hn / (services * whole))
        nodes_split += need.instances / hns
        nodes_whole += need.instances * hn / (services * whole)
    total = sum(need.instances for need in needs)
    p10, median, p90 = np.percentile(ratios, [10, 50, 90])
    return {
        "gpu_node_goodput_ratio_trace": nodes_whole / nodes_split,
        "gpu_node_goodput_ratio_trace_p10": float(p10), "gpu_node_goodput_ratio_trace_median": float(median),
        "gpu_node_goodput_ratio_trace_p90": float(p90),
        "trace_share_that_fits_no_node_whole": left_out / total,
        "hn_cpu_share_trace": sum(need.instances * need.hn_cores for need in needs)
        / sum(need.instances * need.whole_cores for need in needs),
    }  # fmt: skip
