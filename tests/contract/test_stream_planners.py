"""What every stream planner must keep, whoever wrote it."""

import importlib
import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recmesh.plugins.planning import Floats
from recmesh.plugins.streams import GROUP, StreamPlanner, StreamView
from services.brain.domain.streams import STREAM_PLANNERS

planners = pytest.mark.parametrize("name", sorted(STREAM_PLANNERS))


def rates(workers: Floats) -> Floats:
    """Rises to 10 workers, then falls."""
    made: Floats = 16384 / (0.00035 + 2.5726 / workers + 0.9824 / workers**2 + 0.02786 * workers)
    return made


def stream(
    seed: int = 0, *, steps: int = 12, least: int = 1, most: int = 16, workers: int = 5, **more: float
) -> StreamView:
    rng = np.random.default_rng(seed)
    demand = rng.uniform(0, 35_000, steps)
    return StreamView(
        "job",
        1e6,
        300.0,
        demand,
        rates,
        workers=workers,
        least=least,
        most=most,
        **more,
        past=rng.uniform(0, 35_000, 24),
        past_workers=rng.integers(1, 16, 24).astype(np.float64),
        expected=demand * 0.9,
        spread=demand * 0.1,
        workers_per_ps=2.0,
    )


def made(name: str, view: StreamView, seed: int = 0) -> tuple[tuple[int, ...], tuple[str, ...], tuple[bool, ...]]:
    found = STREAM_PLANNERS[name]().schedule(view, np.random.default_rng(seed))
    return found.workers, found.reasons, found.unmet


@planners
@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 1000),
    least=st.integers(1, 6),
    more=st.integers(0, 12),
    workers=st.integers(1, 20),
    backlog=st.floats(0, 1e8),
    restart_s=st.floats(0, 900),
    lead_s=st.floats(0, 900),
    since_s=st.floats(0, 1e5),
)
def test_each_step_has_a_count_within_bounds_a_reason_and_its_servers(
    name: str,
    seed: int,
    least: int,
    more: int,
    workers: int,
    backlog: float,
    restart_s: float,
    lead_s: float,
    since_s: float,
) -> None:
    view = stream(
        seed,
        least=least,
        most=least + more,
        workers=workers,
        backlog=backlog,
        restart_s=restart_s,
        lead_s=lead_s,
        since_s=since_s,
    )
    found = STREAM_PLANNERS[name]().schedule(view, np.random.default_rng(0))
    assert len(found.workers) == len(found.reasons) == len(found.unmet) == len(found.ps) == len(view.demand)
    assert all(least <= count <= least + more for count in found.workers)
    assert all(found.reasons)
    assert all(servers == -(-count // 2) for count, servers in zip(found.workers, found.ps, strict=True))


@planners
def test_the_same_view_and_seed_give_the_same_schedule_and_no_input_is_changed(name: str) -> None:
    view = stream(3)
    assert view.past is not None
    before = view.demand.copy(), view.past.copy()
    assert made(name, view) == made(name, view)
    assert (view.demand == before[0]).all() and (view.past == before[1]).all()


@planners
def test_a_view_without_a_past_or_a_spread_is_answered(name: str) -> None:
    bare = StreamView("job", 0.0, 300.0, np.full(4, 20_000.0), rates, workers=1)
    found = STREAM_PLANNERS[name]().schedule(bare, np.random.default_rng(0))
    assert len(found.workers) == 4 and found.ps == ()


@planners
def test_demand_beyond_every_count_is_said_to_be_unmet(name: str) -> None:
    view = StreamView("job", 0.0, 300.0, np.full(4, 1e9), rates, workers=10, past=np.full(24, 1e9))
    assert all(STREAM_PLANNERS[name]().schedule(view, np.random.default_rng(0)).unmet)


@planners
def test_its_name_is_the_one_it_is_found_by(name: str) -> None:
    assert STREAM_PLANNERS[name]().name == name


def test_the_entry_points_are_the_table() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    entries: dict[str, str] = project["entry-points"][GROUP]
    assert set(entries) == set(STREAM_PLANNERS)
    for name, where in entries.items():
        module, attribute = where.split(":")
        planner: StreamPlanner = getattr(importlib.import_module(module), attribute)()
        assert planner == STREAM_PLANNERS[name]()
