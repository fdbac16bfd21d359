"""CPU time that a request takes in each process of a server, by wire and size, beside KServe's Python server.

A Wide & Deep of less than a millisecond in torch and in TensorFlow; REST with binary tensors and with JSON, gRPC; 1 and
32 samples per request; one client, and several at once that ask again when they are answered. All processes of a
server share a core, the clients are on others. Servers take turns, and of each the turn that took the least is told:
what else a machine does only adds to CPU time, by colder caches. KServe's server (`RECMESH_BENCH_KSERVE_PYTHON`) has
the same files. `bare` is what HTTP alone takes: uvicorn, and an application that does nothing.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from bench.figures import Result
from bench.gateway import end, gateway, listens
from bench.mesh import ROOT, say, scratch
from bench.offered_load import cores
from bench.peers.asking import free_port
from bench.peers.kserve import PYTHON, kserve, python
from bench.serve_load import server_core
from bench.workloads import wide_deep

FRAMEWORKS = {"torch": wide_deep.write, "tensorflow": wide_deep.write_tensorflow}
WIRES = ("rest_binary", "rest_json", "grpc")
ROWS = (1, 32)
CLIENTS = (1, 32)
TURNS, QUICK_TURNS = 7, 3
SECONDS = 1.0
WARM_UP_S = 0.5
SERVING: Mapping[str, Any] = {"split": "never", "max_batch_size": 64}
PROCESSES = {"services.gateway": "gateway", "recmesh.serving.hn": "model", "kserve": "server", "bare_http": "server"}
"""What a process is called here, by what its command line holds."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server and a model in it; addresses are host:port."""

    http: str
    rpc: str
    model: str
    pid: int


@dataclass(frozen=True, slots=True)
class Case:
    """What the clients do."""

    framework: str
    wire: str
    rows: int
    clients: int

    @property
    def name(self) -> str:
        """Of its figures."""
        return f"{self.framework}_{self.wire}_b{self.rows}_c{self.clients}"


@dataclass(frozen=True, slots=True)
class Turn:
    """What came of it once."""

    cpu_us: Mapping[str, float]
    """Per answer, by process."""
    per_s: float
    p50_ms: float
    p99_ms: float

    @property
    def all_us(self) -> float:
        """Of all processes."""
        return sum(self.cpu_us.values())


def run(*, quick: bool) -> Result:
    """By case and server: `cpu_us_*` per request, of all its processes and of each; `per_s_*` and `p99_ms_*` of the
    clients; `cpu_ratio_vs_kserve_*`. Failed answers end the benchmark."""
    turns = QUICK_TURNS if quick else TURNS
    cases = [
        Case(framework, wire, rows, clients)
        for framework in FRAMEWORKS for wire in WIRES for rows in ROWS for clients in CLIENTS
        if not quick or (framework == "torch" and clients > 1)
    ]  # fmt: skip
    figures: dict[str, float] = {}
    with scratch() as folder, _servers(folder) as servers:
        for case in cases:
            found: dict[str, list[Turn]] = {}
            for _ in range(turns):
                for server, targets in servers.items():
                    if case.wire == "grpc" and not targets[case.framework].rpc:
                        continue
                    found.setdefault(server, []).append(_turn(targets[case.framework], case))
            least = {server: min(each, key=lambda turn: turn.all_us) for server, each in found.items()}
            for server, turn in least.items():
                figures |= _figures(f"{server}_{case.name}", turn)
                say(f"  {case.name}, {server}: {turn.all_us:.0f} µs {_shown(turn)}, {turn.per_s:.0f}/s")
            if "kserve" in least:
                figures[f"cpu_ratio_vs_kserve_{case.name}"] = least["kserve"].all_us / least["recmesh"].all_us
    ratios = [value for name, value in figures.items() if name.startswith("cpu_ratio")]
    if ratios:
        figures["cpu_ratio_vs_kserve_median"] = median(ratios)
    return Result("serve_cpu", figures, {
        "server_cores": server_core(), "load_cores": cores()[1], "seconds_each": SECONDS, "turns": turns,
        "serving": dict(SERVING), "skipped": "" if ratios else f"KServe's server: {PYTHON} is not set",
        "quick": f"torch and several clients alone, {QUICK_TURNS} turns instead of {TURNS}" if quick else "",
    })  # fmt: skip


def _figures(name: str, turn: Turn) -> dict[str, float]:
    found = {f"cpu_us_{name}": turn.all_us, f"per_s_{name}": turn.per_s, f"p99_ms_{name}": turn.p99_ms}
    if len(turn.cpu_us) > 1:
        found |= {f"cpu_us_{name}_{process}": value for process, value in turn.cpu_us.items()}
    return found


def _shown(turn: Turn) -> str:
    return ", ".join(f"{process} {value:.0f}" for process, value in turn.cpu_us.items())


def _turn(target: Target, case: Case) -> Turn:
    task = {
        "protocol": "grpc" if case.wire == "grpc" else "rest", "binary": case.wire != "rest_json",
        "address": target.rpc if case.wire == "grpc" else target.http, "model": target.model, "rows": case.rows,
        "clients": case.clients, "seconds": SECONDS, "warm_up_s": WARM_UP_S,
    }  # fmt: skip
    clients = subprocess.Popen(
        ["taskset", "-c", cores()[1], sys.executable, "-m", "bench.workloads.closed_loop", json.dumps(task)],
        cwd=ROOT, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert clients.stdout is not None
    with clients:
        clients.stdout.readline()
        before = _cpu_s(target.pid)
        told = json.loads(clients.stdout.readline())
        after = _cpu_s(target.pid)
    if told["failed"] or not told["answers"]:
        raise RuntimeError(f"{case.name}: {told}")
    spent = {each: 1e6 * (after[each] - before.get(each, 0.0)) / told["answers"] for each in after}
    return Turn(spent, told["answers"] / told["wall_s"], told["p50_ms"], told["p99_ms"])


def _cpu_s(pid: int) -> dict[str, float]:
    """Of a process and all below it, by what they are."""
    found: dict[str, float] = {}
    process = psutil.Process(pid)
    for each in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            line, times = " ".join(each.cmdline()), each.cpu_times()
            kind = next((name for part, name in PROCESSES.items() if part in line), "other")
            found[kind] = found.get(kind, 0.0) + times.user + times.system
    return found


@contextlib.contextmanager
def _servers(folder: Path) -> Iterator[dict[str, dict[str, Target]]]:
    """By server and framework."""
    models = folder / "storage" / "models"
    with contextlib.ExitStack() as stack:
        servers: dict[str, dict[str, Target]] = {"recmesh": {}}
        for framework, write in FRAMEWORKS.items():
            write(models / framework / "1", serving=dict(SERVING))
        ours = stack.enter_context(gateway(folder, cores=server_core()))
        for framework in FRAMEWORKS:
            ours.serve(framework, framework)
            servers["recmesh"][framework] = Target(ours.http, ours.rpc, framework, ours.pid)
            if python():
                theirs = stack.enter_context(
                    kserve(models / framework / "1", folder, cores=server_core(), framework=framework, rpc=True)
                )
                each = Target(theirs.http, theirs.rpc, theirs.model, theirs.pid)
                servers.setdefault("kserve", {})[framework] = each
        servers["bare"] = dict.fromkeys(FRAMEWORKS, stack.enter_context(_bare(folder)))
        yield servers


@contextlib.contextmanager
def _bare(folder: Path) -> Iterator[Target]:
    port, log = free_port(), folder / "bare.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["taskset", "-c", server_core(), sys.executable, "-m", "bench.peers.bare_http", str(port)],
            cwd=ROOT, stdout=output, stderr=output,
        )  # fmt: skip
        try:
            listens(process, port, log)
            yield Target(f"127.0.0.1:{port}", "", "bare", process.pid)
        finally:
            end(process)
