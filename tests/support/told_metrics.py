"""What services can tell Prometheus, asked of a process of its own: `python -m tests.support.told_metrics` prints it.

A registry is the process's, so that what other tests imported or built would be in it too. Here every module of every
service is imported, and metrics that only an object makes are made.
"""

import ast
import importlib
import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import REGISTRY

from recmesh.runtime.clock import system_clock
from recmesh.runtime.ops.server import tell_ready
from recmesh.runtime.telemetry import Metrics
from recmesh.runtime.telemetry.metrics import series
from tests.support.overlays import ROOT

SERVICES = ("brain", "jobmaster", "forecaster", "shardsvc", "ckptcache", "gateway")
MADE_BY_OBJECTS = frozenset({
    "recmesh/runtime/ops/server.py: tell_ready",
    "services/ckptcache/app/figures.py: Figures.__init__",
    "services/jobmaster/ops.py: watch_metrics",
})
"""Where metrics are made later than at import; `collect` calls each."""


def told() -> dict[str, frozenset[str]]:
    """Labels by name of every series that a service can tell."""
    made = subprocess.run(
        [sys.executable, "-m", "tests.support.told_metrics"], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=120, check=False,
    )
    assert made.returncode == 0, made.stderr
    return {name: frozenset(labels) for name, labels in json.loads(made.stdout).items()}


def made_in_functions() -> Iterator[str]:
    """`path: function` of all code outside the telemetry itself that makes metrics when it is called."""
    for folder in ("services", "recmesh"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            where = path.relative_to(ROOT).as_posix()
            if where.startswith("recmesh/runtime/telemetry/"):
                continue
            text = path.read_text()
            if "elemetry" in text:
                yield from (f"{where}: {name}" for name in _makers(ast.parse(text)))


def _makers(tree: ast.AST, name: str = "") -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _makers(node, f"{name}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if any(isinstance(each, ast.Call) and _makes(each) for each in ast.walk(node)):
                yield name + node.name
        else:
            yield from _makers(node, name)


def _makes(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("counter", "gauge", "histogram")


def collect() -> dict[str, frozenset[str]]:
    """In this process."""
    for name in SERVICES:
        package = importlib.import_module(f"services.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    from recmesh.serving.admission.settings import Settings
    from recmesh.serving.hn.desk import Desk
    from recmesh.serving.metrics import families
    from services.ckptcache.app.figures import Figures
    from services.gateway.ops.relay import PROCESS
    from services.jobmaster.app.jobs import Jobs
    from services.jobmaster.gauges import JobCollector, JobFigures, RoleFigures
    from services.jobmaster.ops import watch_metrics

    desk = {**Desk(Settings()).state(), "refused": {"DEADLINE": 1}}
    model = {"queued": 0, "running": 0, "answered": 1}
    states: list[dict[str, Any]] = [
        {"role": "hn", "models": {"ctr/1": model}, "admission": desk},
        {"role": "cn", "models": {"ctr/1": {"queued": 0, "calls": 1, "hedges": 0}}, "requests": 0},
    ]
    tell_ready(True)
    Figures(Metrics("ckptcache"), clock=system_clock)
    watch_metrics(cast(Jobs, SimpleNamespace(runners={}, unreadable={})))
    found = dict(series())
    role = RoleFigures(live=1, wanted=1, memory_bytes=1, memory_limit_bytes=1)
    job = JobFigures(
        "j", "o", "Running", 1, 2, 1.0, 0, 0, snapshot_at=1.0, snapshot_every_s=1.0, lag_s=1.0, roles={"ps": role},
        metrics={"loss": 1.0},
    )
    served = families([({PROCESS: "1"}, state) for state in states], labels=[PROCESS])
    for family in [*JobCollector(lambda: [job]).collect(), *served, *REGISTRY.collect()]:
        for sample in family.samples:
            found.setdefault(sample.name, frozenset(sample.labels))
    return found


if __name__ == "__main__":
    json.dump({name: sorted(labels) for name, labels in collect().items()}, sys.stdout)
