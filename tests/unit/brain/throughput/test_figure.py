"""The figure `fit`: its peers are what their papers say, and its numbers hold on the measurements."""

import numpy as np
import pytest

from bench.dl2 import DataMissing, Table, load
from bench.fit import OURS, draws, scored
from bench.peers.throughput import PEERS

WORKERS, PS = (axis.ravel() for axis in np.meshgrid([1.0, 2, 4, 8], [1.0, 3, 6]))


@pytest.fixture(scope="module")
def dssm() -> Table:
    try:
        return next(table for table in load() if table.model == "dssm")
    except DataMissing as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("name", ["optimus", "optimus_relative"])
def test_optimus_learns_a_job_of_its_own_form(name: str) -> None:
    step_s = 3.0 / WORKERS + 0.5 + 0.2 * WORKERS / PS + 0.05 * WORKERS + 0.01 * PS
    model = PEERS[name](WORKERS, PS, 1 / step_s)
    assert model(np.array([16.0]), np.array([2.0])) == pytest.approx(1 / (3 / 16 + 0.5 + 1.6 + 0.8 + 0.02), rel=1e-6)


@pytest.mark.parametrize("name", ["ernest", "ernest_relative"])
def test_ernest_sees_machines_alone(name: str) -> None:
    step_s = 2.0 + 4.0 / WORKERS + 0.3 * np.log(WORKERS) + 0.1 * WORKERS
    model = PEERS[name](WORKERS, PS, 1 / step_s)
    few, many = model(np.array([16.0, 16.0]), np.array([1.0, 20.0]))
    assert few == many == pytest.approx(1 / (2 + 0.25 + 0.3 * np.log(16) + 1.6), rel=1e-6)


def test_the_neighbours_are_the_nearest_measured() -> None:
    model = PEERS["neighbours"](np.array([1.0, 2, 3, 20]), np.ones(4), np.array([10.0, 20, 30, 999]))
    assert model(np.array([2.0]), np.array([1.0])) == pytest.approx(20)


def test_rows_where_nothing_ran_are_dropped(dssm: Table) -> None:
    assert sum(len(table) for table in load()) == 804 - 9
    assert len(dssm) == 78


def test_draws_hold_twelve_small_configurations_and_are_the_same_for_all(dssm: Table) -> None:
    first, again = draws(dssm, 3), draws(dssm, 3)
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert {len(set(train.tolist())) for train in first} == {12}
    assert max(dssm.workers[train].max() for train in first) <= 11


@pytest.mark.parametrize(("name", "median"), [("optimus", 0.046), ("ernest", 0.028), ("neighbours", 0.022)])
def test_a_peer_errs_as_measured_elsewhere(dssm: Table, name: str, median: float) -> None:
    errors = []
    for i in range(len(dssm)):
        rest = np.delete(np.arange(len(dssm)), i)
        model = PEERS[name](dssm.workers[rest], dssm.ps[rest], dssm.rate[rest])
        errors.append(abs(model(dssm.workers[i : i + 1], dssm.ps[i : i + 1])[0] / dssm.rate[i] - 1))
    assert np.median(errors) == pytest.approx(median, abs=0.002)


def test_ours_beats_optimus_and_chooses_well(dssm: Table) -> None:
    scores = scored(dssm, draws(dssm, 10))
    assert scores[OURS].median < scores["optimus"].median
    assert scores[OURS].regret >= 0.95
