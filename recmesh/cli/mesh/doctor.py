"""`recmesh doctor`: what this machine has and lacks for a mesh; starts nothing, imports nothing heavy."""

import importlib.util
import os
import platform
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from recmesh.cli.mesh import ports, servers, state, stop
from recmesh.cli.mesh.home import MIN_FREE_BYTES, Home
from recmesh.cli.output import size
from recmesh.runtime.errors import MeshError
from recmesh.runtime.process import cgroup

Verdict = Literal["ok", "warning", "missing"]

NEEDED = {
    "grpc": "grpcio", "google.protobuf": "protobuf", "numpy": "numpy", "numba": "numba", "yaml": "pyyaml",
    "pyarrow": "pyarrow", "pydantic": "pydantic", "nats": "nats-py", "redis": "redis", "fastapi": "fastapi",
    "uvloop": "uvloop", "uvicorn": "uvicorn", "httptools": "httptools", "jinja2": "jinja2", "httpx": "httpx",
    "scipy": "scipy", "sqlalchemy": "sqlalchemy", "fsspec": "fsspec", "safetensors": "safetensors",
    "opentelemetry": "opentelemetry-api", "prometheus_client": "prometheus-client",
}  # fmt: skip
FRAMEWORKS = {"torch": "torch", "tensorflow": "tensorflow"}
MIN_MEMORY_BYTES = 2 * 2**30
"""Six services (about 100 MiB each), two stores, and a small job."""
MIN_SHM_BYTES = 256 * 2**20
MIN_OPEN_FILES = 1024


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's outcome."""

    check: str
    verdict: Verdict
    found: str
    mend: str = ""
    """What to do; empty when all is well."""


def examine(home: Home) -> list[Finding]:
    """All checks; one that itself fails is a finding, too."""
    findings: list[Finding] = []
    checks: list[Callable[[Home], Iterator[Finding]]] = [
        _python, _packages, _binaries, _memory, _disk, _shared_memory, _limits, _open_files, _clock, _ports,
    ]  # fmt: skip
    for check in checks:
        try:
            findings.extend(check(home))
        except Exception as error:  # a check that this machine has no ground for must not hide the others
            findings.append(Finding(check.__name__.strip("_"), "warning", f"cannot be checked: {error}"))
    return findings


def _python(_: Home) -> Iterator[Finding]:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if platform.system() != "Linux":
        yield Finding(
            "system", "missing", found, "recmesh needs Linux: processes and limits are the kernel's"
        )
    good = (3, 11) <= sys.version_info < (3, 13)
    yield Finding("python", "ok" if good else "missing", found, "" if good else "use Python 3.11 or 3.12")


def _packages(_: Home) -> Iterator[Finding]:
    absent = [package for module, package in NEEDED.items() if not _importable(module)]
    mend = f"pip install 'recmesh[mesh]' (missing: {', '.join(absent)})" if absent else ""
    yield Finding(
        "packages", "missing" if absent else "ok", f"{len(NEEDED) - len(absent)} of {len(NEEDED)}", mend
    )
    services = _importable("services")
    yield Finding(
        "services", "ok" if services else "missing", "importable" if services else "not importable",
        "" if services else "run from a checkout, or `pip install -e .` there",
    )  # fmt: skip
    present = [name for name, module in FRAMEWORKS.items() if _importable(module)]
    yield Finding(
        "frameworks", "ok" if present else "warning", ", ".join(present) or "none",
        "" if present else "to train and serve: pip install 'recmesh[torch]' or 'recmesh[tensorflow]'",
    )  # fmt: skip


def _binaries(_: Home) -> Iterator[Finding]:
    for name, find in (("nats-server", servers.nats_binary), ("valkey-server", servers.valkey_binary)):
        try:
            path = find()
        except MeshError as error:
            yield Finding(name, "missing", "not found", error.message)
            continue
        good = os.access(path, os.X_OK)
        yield Finding(name, "ok" if good else "missing", str(path), "" if good else f"chmod +x {path}")


def _memory(_: Home) -> Iterator[Finding]:
    free = psutil.virtual_memory().available
    good = free >= MIN_MEMORY_BYTES
    mend = "" if good else f"free some: less than {size(MIN_MEMORY_BYTES)} is tight for a mesh with a job"
    yield Finding("memory", "ok" if good else "warning", f"{size(free)} available", mend)
    cores = len(os.sched_getaffinity(0))
    yield Finding("cores", "ok", str(cores))


def _disk(home: Home) -> Iterator[Finding]:
    existing = next(path for path in (home.root, *home.root.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    good = free >= MIN_FREE_BYTES
    mend = "" if good else f"free some on {existing}, or choose another folder with --home"
    yield Finding("disk", "ok" if good else "missing", f"{size(free)} free for {home.root}", mend)
    if not os.access(existing, os.W_OK):
        yield Finding("data folder", "missing", f"{existing} cannot be written", "choose another with --home")


def _shared_memory(_: Home) -> Iterator[Finding]:
    shm = Path("/dev/shm")
    free = shutil.disk_usage(shm).free if shm.is_dir() else 0
    good = free >= MIN_SHM_BYTES and os.access(shm, os.W_OK)
    mend = "" if good else "checkpoints go over the network instead; in Docker: --shm-size=2g"
    yield Finding("/dev/shm", "ok" if good else "warning", f"{size(free)} free", mend)


def _limits(_: Home) -> Iterator[Finding]:
    limits = cgroup.apply(f"recmesh-doctor-{os.getpid()}", cpu_cores=1.0, memory_bytes=2**30)
    for folder in limits.folders:
        cgroup.remove(folder)
    mend = (
        ""
        if limits.enforced
        else (
            f"CPU and memory of roles are not limited: {limits.reason}; run as root, or in a systemd "
            "scope with Delegate=yes"
        )
    )
    yield Finding(
        "limits", "ok" if limits.enforced else "warning", "cgroup" if limits.enforced else "none", mend
    )


def _open_files(_: Home) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    good = soft >= MIN_OPEN_FILES
    mend = "" if good else f"ulimit -n {min(hard, 65536) if hard > 0 else 65536}"
    yield Finding("open files", "ok" if good else "warning", str(soft), mend)


def _clock(_: Home) -> Iterator[Finding]:
    now = time.time()
    built = max((path.stat().st_mtime for path in Path(__file__).parent.glob("*.py")), default=0.0)
    good = now > built - 86400.0  # files from the future mean a clock that is behind
    zone = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    yield Finding(
        "clock", "ok" if good else "warning", zone, "" if good else "the clock is behind: set it, or run NTP"
    )


def _ports(home: Home) -> Iterator[Finding]:
    mesh = state.load(home.mesh_file)
    alive = {handle.name for handle in stop.living(home)}
    taken = [
        f"{name} {port} ({ports.holder(port) or 'unknown'})"
        for name, port in mesh.ports.items()
        if name.partition(".")[0] not in alive and not ports.is_free("127.0.0.1", port)
    ]
    found = f"{len(mesh.ports)} kept" if mesh.ports else "none kept yet"
    mend = (
        f"taken: {', '.join(taken)}; `recmesh up` chooses others unless config.toml fixes them"
        if taken
        else ""
    )
    yield Finding("ports", "warning" if taken else "ok", found, mend)


def _importable(module: str) -> bool:
    with suppress(ImportError, ValueError):
        return importlib.util.find_spec(module) is not None
    return False
