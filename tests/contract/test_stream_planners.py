"""What every stream planner must keep, whoever wrote it."""

import importlib
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.planner_plugin.src.fair_share.peak import HourPeak
from recmesh.plugins.planning import Floats
from recmesh.plugins.stream_contract import check_stream_planner
from recmesh.plugins.streams import GROUP, Schedule, StreamPlanner, StreamView
from services.brain.domain.streams import STREAM_PLANNERS

KNOWN: dict[str, Callable[[], StreamPlanner]] = {**STREAM_PLANNERS, "hour-peak": HourPeak}
planners = pytest.mark.parametrize("name", sorted(KNOWN))


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
def test_a_stream_planner_keeps_its_contract(
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
    check_stream_planner(KNOWN[name], [view, view], budget_s=60.0)


@planners
def test_a_view_without_a_past_or_a_spread_is_answered(name: str) -> None:
    bare = StreamView("job", 0.0, 300.0, np.full(4, 20_000.0), rates, workers=1)
    found = KNOWN[name]().schedule(bare, np.random.default_rng(0))
    assert len(found.workers) == 4 and found.ps == ()


@planners
def test_demand_beyond_every_count_is_said_to_be_unmet(name: str) -> None:
    view = StreamView("job", 0.0, 300.0, np.full(4, 1e9), rates, workers=10, past=np.full(24, 1e9))
    assert all(KNOWN[name]().schedule(view, np.random.default_rng(0)).unmet)


@planners
def test_its_name_is_the_one_it_is_found_by(name: str) -> None:
    assert KNOWN[name]().name == name


def test_the_entry_points_are_the_table() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    entries: dict[str, str] = project["entry-points"][GROUP]
    assert set(entries) == set(STREAM_PLANNERS)
    for name, where in entries.items():
        module, attribute = where.split(":")
        planner: StreamPlanner = getattr(importlib.import_module(module), attribute)()
        assert planner == KNOWN[name]()


class _Broken:
    """Holds what there is; a test breaks one rule of it."""

    name = "broken"

    def schedule(self, stream: StreamView, rng: np.random.Generator) -> Schedule:
        steps = len(stream.demand)
        return Schedule((stream.workers,) * steps, ("it stays",) * steps, (False,) * steps, (3,) * steps)


class _Silent(_Broken):
    def schedule(self, stream: StreamView, rng: np.random.Generator) -> Schedule:
        return replace(super().schedule(stream, rng), reasons=(" ",) * len(stream.demand))


class _Short(_Broken):
    def schedule(self, stream: StreamView, rng: np.random.Generator) -> Schedule:
        return replace(super().schedule(stream, rng), workers=(stream.workers,))


class _Counting(_Broken):
    def __init__(self) -> None:
        self.asked = 0

    def schedule(self, stream: StreamView, rng: np.random.Generator) -> Schedule:
        self.asked += 1
        return replace(super().schedule(stream, rng), reasons=(str(self.asked),) * len(stream.demand))


class _Careless(_Broken):
    def schedule(self, stream: StreamView, rng: np.random.Generator) -> Schedule:
        stream.demand[0] = 0.0
        return super().schedule(stream, rng)


class _Serverless(_Broken):
    def schedule(self, stream: StreamView, rng: np.random.Generator) -> Schedule:
        return replace(super().schedule(stream, rng), ps=())


@pytest.mark.parametrize(
    ("planner", "demand", "workers", "said"),
    [
        (_Broken, 20_000.0, 5, ""),
        (_Broken, 20_000.0, 17, "lie outside of 1 to 16"),
        (_Broken, 1e9, 5, "does not say so"),
        (_Silent, 20_000.0, 5, "without words"),
        (_Short, 20_000.0, 5, "for 4 steps"),
        (_Counting, 20_000.0, 5, "keep no state of calls"),
        (_Careless, 20_000.0, 5, "was changed"),
        (_Serverless, 20_000.0, 5, "parameter servers"),
    ],
)
def test_the_contract_catches_a_planner_that_breaks_it(
    planner: type[StreamPlanner], demand: float, workers: int, said: str
) -> None:
    view = StreamView("job", 0.0, 300.0, np.full(4, demand), rates, workers=workers, most=16, workers_per_ps=2.0)
    if not said:
        check_stream_planner(planner, [view])
        return
    with pytest.raises(AssertionError, match=said):
        check_stream_planner(planner, [view])


def test_the_contract_catches_a_planner_that_takes_too_long() -> None:
    with pytest.raises(AssertionError, match="of CPU"):
        check_stream_planner(HourPeak, [stream()], budget_s=0.0)
