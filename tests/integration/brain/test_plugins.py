"""Planners of an installed package, found by their entry points: the example's."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "planner_plugin"
LOADED = """
from recmesh.plugins.registry import load
from recmesh.plugins.streams import GROUP
from services.brain.__main__ import planner
from services.brain.config import BrainSettings
from services.brain.domain.streams import STREAM_PLANNERS
print(planner(BrainSettings.from_env({"RECMESH_PLANNER": "fair-share"}, "RECMESH_")).name)
print(load(GROUP, "hour-peak", STREAM_PLANNERS)().name)
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder as pip leaves it: the package, and the metadata beside it."""
    shutil.copytree(EXAMPLE / "src" / "fair_share", tmp_path / "fair_share")
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    info = tmp_path / f"recmesh_fair_share-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {where}\n" for name, where in points.items())
        for group, points in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(groups))
    return tmp_path


def run(installed: Path, *arguments: str) -> str:
    path = os.pathsep.join([str(installed), str(EXAMPLE.parents[1])])
    done = subprocess.run(
        [sys.executable, *arguments], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_brain_and_the_registry_find_them_by_name(installed: Path) -> None:
    assert run(installed, "-c", LOADED).split() == ["fair-share", "hour-peak"]


def test_the_simulator_runs_the_package_s_planner(installed: Path) -> None:
    trace = installed / "three.csv"
    trace.write_text("arrival_s,workers,duration_s\n0,2,600\n60,2,600\n120,1,300\n")
    told = json.loads(run(
        installed, "-m", "services.brain.simulator", "--planner", "fair-share", "--truth", "paper", "--trace",
        str(trace), "--nodes", "4x32x128", "--load", "0", "--json",
    ))  # fmt: skip
    fair = told["planners"]["fair-share"]
    assert fair["ended"] == fair["jobs"] == 3 and fair["decisions"] > 0
