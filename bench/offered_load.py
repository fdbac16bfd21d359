"""Load that is offered to a server from a process of its own, and what came of it."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.mesh import ROOT

SLO_S = 0.025
START_S = 60.0

Times = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Offered:
    """Requests in the order of their drawn times; times on the monotonic clock, of all processes the same."""

    due: Times
    sent: Times
    done: Times
    """Not a number where there was no answer."""
    status: Times

    @property
    def latency_s(self) -> Times:
        """From the drawn time; infinite for what was refused, failed or lost."""
        return np.where(self.status == 200, self.done - self.due, np.inf)

    @property
    def failed(self) -> int:
        """Refused, failed or lost."""
        return int((self.status != 200).sum())

    @property
    def late_s(self) -> float:
        """The most by which a request went out later than drawn: the client's fault, or of connections all in use."""
        return float(np.nanmax(self.sent - self.due))

    def between(self, begin: float, end: float) -> "Offered":
        """Those drawn for this time."""
        chosen = (self.due >= begin) & (self.due < end)
        return Offered(self.due[chosen], self.sent[chosen], self.done[chosen], self.status[chosen])

    def after(self, warm_up_s: float) -> "Offered":
        """Without the first seconds."""
        return self.between(float(self.due[0]) + warm_up_s, np.inf)

    def percentile_ms(self, percent: float) -> float:
        """Of latency, those without a good answer among them; -1 where it is one of these."""
        at = float(np.percentile(self.latency_s, percent, method="higher"))
        return 1e3 * at if np.isfinite(at) else -1.0

    def goodput(self, within_s: float = SLO_S) -> float:
        """Good answers in time, per second."""
        spent = float(self.due[-1] - self.due[0])
        return float((self.latency_s <= within_s).sum() / spent)

    def share_in_time(self, within_s: float = SLO_S) -> float:
        """Of all requests."""
        return float((self.latency_s <= within_s).mean())


@dataclass(frozen=True, slots=True)
class Target:
    """A server and a model in it."""

    address: str
    model: str


def cores() -> tuple[str, str]:
    """For the servers, and for the load: halves of this machine, as taskset takes them."""
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) < 2:
        raise RuntimeError("the load needs a core beside the server's")
    half = len(mine) // 2
    return ",".join(map(str, mine[:half])), ",".join(map(str, mine[half:]))


@contextlib.contextmanager
def under_way(
    target: Target, folder: Path, *, phases: Sequence[tuple[float, float]], rows: int, binary: bool, seed: int = 1
) -> Iterator["Under"]:
    """The load runs inside the block, and goes on to its end; `result` waits for it. phases: (per second, seconds),
    one after another."""
    host, _, port = target.address.partition(":")
    out = folder / "offered.npz"
    task = {
        "host": host, "port": int(port), "model": target.model, "phases": list(phases), "rows": rows, "binary": binary,
        "seed": seed, "out": str(out),
    }  # fmt: skip
    process = subprocess.Popen(
        ["taskset", "-c", cores()[1], sys.executable, "-m", "bench.workloads.open_loop", json.dumps(task)],
        cwd=ROOT, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        yield Under(process, out, sum(seconds for _, seconds in phases))
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


class Under:
    """Load that is under way."""

    def __init__(self, process: "subprocess.Popen[bytes]", out: Path, seconds: float) -> None:
        self._process = process
        self._out = out
        self._seconds = seconds

    def began(self) -> float:
        """Waits for the first request; when it is due."""
        assert self._process.stdout is not None
        return float(json.loads(self._process.stdout.readline())["begins"])

    def stop(self) -> None:
        """No more requests from now on."""
        self._process.terminate()

    def result(self) -> Offered:
        """What came of it, once it is over."""
        self._process.communicate(timeout=self._seconds * 3 + START_S)
        if self._process.returncode:
            raise RuntimeError("the load generator failed")
        with np.load(self._out) as found:
            return Offered(found["due"], found["sent"], found["done"], found["status"])


def offer(
    target: Target, folder: Path, *, rate: float, seconds: float, rows: int, binary: bool, seed: int = 1
) -> Offered:
    """Offer so many requests per second, and wait for the end."""
    with under_way(target, folder, phases=[(rate, seconds)], rows=rows, binary=binary, seed=seed) as load:
        return load.result()
