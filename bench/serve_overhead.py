"""What serving in halves costs: latency, one request after another, whole and split on one machine.

A DLRM with attention of 30 to 60 ms, 3.9 MiB from CN to HN per request. Every process has one compute thread,
so that both ways have the same cores: whichever half runs, the other waits. All ways take turns, request by
request, so that what else the machine does falls on all of them. On a machine that others use, latency is mostly
waiting for a core; `cpu_ms_*`, what a request takes of all processes that it goes through, tells then more.
"""

import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from bench.figures import Result
from bench.mesh import ROOT, one_thread, say, scratch
from bench.workloads import attentive
from recmesh.runtime.errors import MeshError
from recmesh.serving import halves
from recmesh.serving.cn import model as cn_models
from recmesh.serving.cn.alarms import Alarms
from recmesh.serving.cn.model import CnModel
from recmesh.serving.cn.peers import HnLink
from recmesh.serving.programs import Arrays, Program, framework
from recmesh.serving.tensors import Tensor
from recmesh.serving.transport import Message
from recmesh.serving.transport.endpoints import Endpoint, dial, dialling

REQUESTS, QUICK_REQUESTS = 400, 40
WARM_UP = 5
TIMEOUT_S = 60.0

Way = Callable[[Arrays], Arrays]
Pids = tuple[int, ...]


def run(*, quick: bool) -> Result:
    """`disagg_overhead_pct`: p50 of CN here + HN process over shared memory, above the whole model in this process.

    `_unix`: over a Unix socket. `_processes`: CN process + HN process, above a process with the whole model, both
    asked over a Unix socket. `_min`: of the fastest request each, `_cpu`: of CPU time.
    """
    count = QUICK_REQUESTS if quick else REQUESTS
    with scratch() as folder, ExitStack() as stack:
        model = attentive.write(folder / "model")
        ways = _ways(model, folder, stack)
        measured = _measured(ways, count)
    figures: dict[str, float] = {}
    for name, taken in measured.items():
        ordered = sorted(wall for wall, _ in taken)
        figures[f"ms_min_{name}"] = 1e3 * ordered[0]
        figures[f"cpu_ms_{name}"] = statistics.median(cpu for _, cpu in taken) / 1e6
        figures[f"ms_p50_{name}"] = 1e3 * statistics.median(ordered)
        figures[f"ms_p99_{name}"] = 1e3 * ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]

    def overhead(split: str, whole: str, of: str = "ms_p50") -> float:
        return 100 * (figures[f"{of}_{split}"] / figures[f"{of}_{whole}"] - 1)

    figures["disagg_overhead_pct"] = overhead("remote_shm", "whole")
    figures["disagg_overhead_pct_unix"] = overhead("remote_unix", "whole")
    figures["disagg_overhead_pct_local"] = overhead("local_split", "whole")
    figures["disagg_overhead_pct_processes"] = overhead("processes_split", "processes_whole")
    for kind, of in (("min", "ms_min"), ("cpu", "cpu_ms")):
        figures[f"disagg_overhead_pct_{kind}"] = overhead("remote_shm", "whole", of)
        figures[f"disagg_overhead_pct_unix_{kind}"] = overhead("remote_unix", "whole", of)
        figures[f"disagg_overhead_pct_processes_{kind}"] = overhead("processes_split", "processes_whole", of)
    return Result("serve_overhead", figures, {
        "requests_each": count, "sent_bytes_per_request": attentive.SENT_BYTES, "items": attentive.ITEMS,
        "quick": f"{QUICK_REQUESTS} requests instead of {REQUESTS}" if quick else "",
    })  # fmt: skip


def _ways(model: Path, folder: Path, stack: ExitStack) -> dict[str, tuple[Way, Pids]]:
    chosen, _ = framework("torch")
    whole = chosen.load(model, halves.part(model).card)
    sparse = cn_models.load(attentive.KEY, model, threads=1)
    dense = chosen.load(model / "split" / "dense", halves.part(model / "split" / "dense").card)
    alone = folder / "alone"
    shutil.copytree(model, alone, ignore=shutil.ignore_patterns("split"))
    shm, unix = Endpoint("shm", str(folder / "hn.shm")), Endpoint("unix", str(folder / "hn.unix"))
    cn, server = Endpoint("unix", str(folder / "cn.unix")), Endpoint("unix", str(folder / "whole.unix"))
    here = ["--listen", str(shm), "--listen", str(unix)]
    hn_pid = stack.enter_context(process("recmesh.serving.hn", model, *here))
    cn_pid = stack.enter_context(process("recmesh.serving.cn", model, "--hn", str(shm), "--listen", str(cn)))
    whole_pid = stack.enter_context(process("recmesh.serving.hn", alone, "--listen", str(server)))
    mine = os.getpid()
    return {
        "whole": (whole.run, (mine,)),
        "local_split": (lambda inputs: _local(sparse, dense, inputs), (mine,)),
        "remote_shm": (remote(sparse, shm, stack), (mine, hn_pid)),
        "remote_unix": (remote(sparse, unix, stack), (mine, hn_pid)),
        "processes_whole": (_asked(server, stack), (mine, whole_pid)),
        "processes_split": (_asked(cn, stack), (mine, cn_pid, hn_pid)),
    }


def _measured(ways: dict[str, tuple[Way, Pids]], count: int) -> dict[str, list[tuple[float, int]]]:
    """Of each request by each way: seconds, and nanoseconds of CPU."""
    times: dict[str, list[tuple[float, int]]] = {name: [] for name in ways}
    for index in range(WARM_UP + count):
        request = attentive.inputs(index)
        expected: Arrays | None = None
        for name, (way, pids) in ways.items():
            spent, began = cpu_ns(pids), time.perf_counter()
            answer = way(request)
            took, spent = time.perf_counter() - began, cpu_ns(pids) - spent
            expected = expected or answer
            if not np.allclose(answer["predictions"], expected["predictions"], atol=1e-6):
                raise RuntimeError(f"{name} answers something else than the whole model")
            if index >= WARM_UP:
                times[name].append((took, spent))
        if index % 20 == 0:
            say(f"  {index} of {WARM_UP + count}")
    return times


def cpu_ns(pids: Pids) -> int:
    """On a core so far, over all threads; the kernel's own count, to the nanosecond."""
    tasks = (task for pid in pids for task in Path(f"/proc/{pid}/task").iterdir())
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def _local(sparse: CnModel, dense: Program, inputs: Arrays) -> Arrays:
    known = sparse.prepare(inputs)
    return dense.run({name: known[name] for name in sparse.dense.inputs})


def remote(sparse: CnModel, endpoint: Endpoint, stack: ExitStack) -> Way:
    link = HnLink(endpoint, dial=dialling(token=None), alarms=Alarms(), log=say)
    stack.callback(link.close)
    while not link.connected:
        time.sleep(0.01)

    def way(inputs: Arrays) -> Arrays:
        done = threading.Event()
        results: list[Message | MeshError] = []

        def answered(result: Message | MeshError) -> None:
            results.append(result)
            done.set()

        tensors = sparse.sent(sparse.prepare(inputs))
        header = {"op": "infer", "model": attentive.KEY, "outputs": ["predictions"]}
        link.call(header, tensors, deadline=time.monotonic() + TIMEOUT_S, done=answered)
        done.wait()
        [result] = results
        if isinstance(result, MeshError):
            raise result
        return {tensor.name: tensor.array for tensor in result.tensors}

    return way


def _asked(endpoint: Endpoint, stack: ExitStack) -> Way:
    transport = dial(endpoint, token=None, timeout_s=TIMEOUT_S)
    stack.callback(transport.close)

    def way(inputs: Arrays) -> Arrays:
        header = {"op": "infer", "call": 1, "model": attentive.KEY, "outputs": ["predictions"],
                  "budget_ns": int(TIMEOUT_S * 1e9)}  # fmt: skip
        transport.send(header, [Tensor.of(name, array) for name, array in inputs.items()])
        message = transport.receive()
        if message is None or "error" in message.header:
            raise RuntimeError(f"{endpoint} answered {message and message.header}")
        return {tensor.name: tensor.array for tensor in message.tensors}

    return way


@contextmanager
def process(module: str, model: Path, *arguments: str) -> Iterator[int]:
    """A CN or an HN that serves the model, ready on entry; its number."""
    command = [sys.executable, "-m", module, "--framework", "torch", "--model", f"{attentive.KEY}={model}", *arguments]
    started = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **one_thread()}, stdout=subprocess.PIPE)
    try:
        assert started.stdout is not None
        if not started.stdout.readline().startswith(b"ready"):
            raise RuntimeError(f"{module} did not start")
        yield started.pid
    finally:
        started.terminate()
        try:
            started.wait(15.0)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()
