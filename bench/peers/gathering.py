"""`python -m bench.peers.gathering JSON`: a process that only reads and writes rows of its own memory.

It holds no lock, asks the kernel for no page, and serves nobody, so the longest of its rounds is the machine's doing. A
second process fills shared memory meanwhile, as a snapshot does.
"""

import json
import mmap
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import NamedTemporaryFile

import numpy as np

WIDTH, ROWS, DRAWS = 40, 4096, 200
PAUSE_S = 0.003
WARM_UP_S = 5.0
_FILL = """
import os, sys, time
file, data = open(sys.argv[1], "wb", buffering=0), os.urandom(1 << 20)
for _ in range(int(sys.argv[2])):
    file.write(data)
    time.sleep(0.005)
"""


def main() -> None:
    """Prints the longest rounds of each kind as JSON."""
    task = json.loads(sys.argv[1])
    size = int(task["size_bytes"])
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    table = np.frombuffer(memory, np.float32)[: size // 4 // WIDTH * WIDTH].reshape(-1, WIDTH)
    for lo in range(0, len(table), 1 << 20):
        table[lo:lo + (1 << 20)] = 1.0
    rng = np.random.default_rng(0)
    draws = [rng.integers(0, len(table), ROWS) for _ in range(DRAWS)]
    _rounds(table, draws, WARM_UP_S, None)
    alone = _rounds(table, draws, float(task["seconds"]), None)
    beside = []
    with NamedTemporaryFile(dir=task["shm"]) as one, NamedTemporaryFile(dir=task["shm"]) as other:
        for path in (one.name, other.name, one.name):       # the last one into pages that are there
            filling = subprocess.Popen([sys.executable, "-c", _FILL, path, str(size >> 20)])
            beside.append(_rounds(table, draws, 600.0, filling))
            if filling.returncode:
                raise RuntimeError(f"filling {Path(path).parent} ended with {filling.returncode}")
    print(json.dumps({"alone": alone, "beside": beside}))


def _rounds(
    table: "np.ndarray[tuple[int, int], np.dtype[np.float32]]",
    draws: "list[np.ndarray[tuple[int], np.dtype[np.int64]]]",
    seconds: float,
    other: "subprocess.Popen[bytes] | None",
) -> dict[str, float]:
    """Rounds for so long, or until the other process has ended."""
    faults, ends = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.monotonic() + seconds
    out = np.empty((ROWS, WIDTH), np.float32)
    walls: list[float] = []
    cpus: list[float] = []
    while time.monotonic() < ends and (other is None or other.poll() is None):
        rows, began, worked = draws[len(walls) % DRAWS], time.perf_counter(), time.thread_time()
        np.take(table, rows, axis=0, out=out, mode="clip")
        table[rows] = out
        walls.append(time.perf_counter() - began)
        cpus.append(time.thread_time() - worked)
        time.sleep(PAUSE_S)
    longest = int(np.argmax(walls))
    return {"median_ms": float(np.median(walls)) * 1e3, "longest_ms": walls[longest] * 1e3,
            "cpu_of_longest_ms": cpus[longest] * 1e3, "rounds": len(walls), "load_1min": os.getloadavg()[0],
            "page_faults": resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults}


if __name__ == "__main__":
    main()
