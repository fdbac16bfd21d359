"""The contract that every stream planner must keep, and what this one is for."""

import numpy as np
from fair_share.peak import HourPeak

from recmesh.plugins.planning import Floats
from recmesh.plugins.stream_contract import check_stream_planner
from recmesh.plugins.streams import StreamView


def rates(workers: Floats) -> Floats:
    """A hundred samples per second each."""
    made: Floats = workers * 100.0
    return made


def stream(demand: list[float], **rest: float) -> StreamView:
    """Steps of ten minutes."""
    return StreamView("j", 0.0, 600.0, np.array(demand), rates, workers=2, most=8, **rest)  # type: ignore[arg-type]


def test_it_keeps_the_contract() -> None:
    """Without demand, with more than can be met, with servers."""
    check_stream_planner(HourPeak, [stream([0.0] * 3), stream([1e9] * 20), stream([250.0] * 9, workers_per_ps=2.0)])


def test_an_hour_has_the_workers_of_its_peak() -> None:
    """Six steps of ten minutes."""
    (found,) = check_stream_planner(HourPeak, [stream([100.0, 450.0, 0.0, 0.0, 0.0, 0.0, 150.0])])
    assert found.workers == (5, 5, 5, 5, 5, 5, 2)
