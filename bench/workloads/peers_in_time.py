"""Stream planners with the settings that `bench autoscale` tuned for live changes, and their times compressed.

In the simulator a plan's step is 300 s, on a compressed mesh it is 10: what a planner counts in seconds is a thirtieth
here. brain finds them as it does anybody's, by entry points (docs/reference/streams.md).
"""

from dataclasses import replace
from pathlib import Path

from recmesh.plugins.streams import GROUP, StreamPlanner
from services.brain.domain.streams.autopilot import Autopilot
from services.brain.domain.streams.horizon import Horizon, Weights
from services.brain.domain.streams.hpa import Hpa
from services.brain.domain.streams.kale import Kale
from services.brain.domain.streams.madu import Madu
from services.brain.domain.streams.stabilise import Stability

FASTER = 30.0
"""A step of 300 s to one of 10 s."""
PREFIX = "timed-"


def hpa() -> StreamPlanner:
    """Target .9."""
    return Hpa(target=0.9, down_window_s=300.0 / FASTER, period_s=15.0 / FASTER)


def autopilot() -> StreamPlanner:
    """95th percentile of an hour and 10 %."""
    return Autopilot(
        statistic="percentile", window_s=3600.0 / FASTER, half_life_s=1200.0 / FASTER, margin=0.1,
        down_window_s=3600.0 / FASTER,
    )  # fmt: skip


def madu() -> StreamPlanner:
    """Target .9; it knows no times."""
    return Madu(target=0.9, shrink_share=0.1)


def kale() -> StreamPlanner:
    """τ 10 min."""
    return Kale(stability=Stability(tau_s=600.0 / FASTER))


def horizon() -> StreamPlanner:
    """What a change as such is worth is counted in seconds of workers, too."""
    usual = Weights()
    return Horizon(weights=replace(usual, change_s=usual.change_s / FASTER))


MADE = (hpa, autopilot, madu, kale, horizon)


def install(folder: Path) -> None:
    """The record of an installed package with an entry point for each, for a folder on PYTHONPATH."""
    record = folder / "recmesh_bench_planners-0.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: recmesh-bench-planners\nVersion: 0\n")
    lines = [f"{PREFIX}{make.__name__} = {__name__}:{make.__name__}" for make in MADE]
    (record / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines, ""]))
