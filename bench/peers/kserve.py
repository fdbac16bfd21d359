"""KServe's Python server with `wide_deep`'s model, as a process of a benchmark's."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.gateway import ROOT, end, listens
from bench.peers.asking import free_port
from bench.peers.kserve_wide_deep import NAME

PYTHON = "RECMESH_BENCH_KSERVE_PYTHON"
"""The interpreter of an environment with `kserve`."""


@dataclass(frozen=True, slots=True)
class Kserve:
    """A running server; addresses are host:port."""

    http: str
    rpc: str
    """Empty: it speaks no gRPC."""
    pid: int
    model: str = NAME


def python() -> str:
    """Empty: there is no KServe here."""
    return os.environ.get(PYTHON, "")


@contextlib.contextmanager
def kserve(model: Path, folder: Path, *, cores: str, framework: str = "torch", rpc: bool = False) -> Iterator[Kserve]:
    """The server of the exported model, as soon as it listens; it runs on these cores, as taskset takes them."""
    port, rpc_port = free_port(), free_port() if rpc else 0
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    site = str(Path(torch.__file__).parents[1])
    log = folder / f"kserve-{framework}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["taskset", "-c", cores, python(), "-m", "bench.peers.kserve_wide_deep", framework, str(port),
             str(rpc_port), str(model), site],
            cwd=folder, env=env, stdout=output, stderr=output,
        )  # fmt: skip
        try:
            listens(process, port, log)
            if rpc:
                listens(process, rpc_port, log)
            yield Kserve(f"127.0.0.1:{port}", f"127.0.0.1:{rpc_port}" if rpc else "", process.pid)
        finally:
            end(process)
