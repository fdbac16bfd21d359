"""Measured speeds between and beyond the measurements."""

import os
from pathlib import Path

import numpy as np
import pytest

from recmesh.plugins.planning import Allocation, Shapes
from recmesh.runtime.errors import InvalidArgument
from services.brain.simulator.papertruth import PaperTruth
from services.brain.simulator.tables import DLRM_LIKE, dl2, pollux, truth_named
from services.brain.simulator.truth import Measurement, Oracle, Table, rate_of
from tests.unit.brain.simulator.worlds import FACTS, TRUTH

DATA = Path(os.environ.get("RECMESH_DATA") or Path(__file__).parents[4].parent / "shared" / "data")
needs_data = pytest.mark.skipif(not (DATA / "jobs").is_dir(), reason=f"no public traces in {DATA}: set RECMESH_DATA")


def shape(workers: float, ps: float, worker_cpu: float = 2.0, ps_cpu: float = 1.0) -> Shapes:
    return Shapes(*(np.array([value], dtype=np.float64) for value in (workers, ps, worker_cpu, ps_cpu)))


def test_a_measured_size_has_its_measured_speed() -> None:
    assert TRUTH.rates("ads", shape(4, 2))[0] == pytest.approx(100 * 8 / 6)


def test_between_two_sizes_it_is_linear_in_the_logarithms() -> None:
    low, high = 100 * 2 / 3, 100 * 4 / 5
    share = np.log(3 / 2) / np.log(4 / 2)
    assert TRUTH.rates("ads", shape(3, 1))[0] == pytest.approx(low * (high / low) ** share)


def test_beyond_the_measured_sizes_there_is_nothing_to_be_gained() -> None:
    assert TRUTH.rates("ads", shape(60, 30))[0] == TRUTH.rates("ads", shape(6, 3))[0]


def test_a_hole_in_the_measurements_has_a_speed_among_theirs() -> None:
    rows = [Measurement(1, 1, 10.0), Measurement(9, 1, 50.0), Measurement(1, 9, 20.0)]
    table = Table.of(FACTS, rows)
    assert np.all((table.rate >= 10.0 - 1e-9) & (table.rate <= 50.0 + 1e-9))


def test_failed_runs_are_left_out() -> None:
    table = Table.of(FACTS, [Measurement(1, 1, 10.0), Measurement(2, 1, 0.0), Measurement(3, 1, 30.0)])
    assert 10.0 < table.rate[1, 0] < 30.0


def test_fewer_cores_than_were_used_slow_it_and_more_add_nothing() -> None:
    full = TRUTH.rates("ads", shape(2, 2))[0]
    assert TRUTH.rates("ads", shape(2, 2, worker_cpu=0.75))[0] == pytest.approx(full / 2)
    assert TRUTH.rates("ads", shape(2, 2, worker_cpu=8.0, ps_cpu=8.0))[0] == full


def test_use_is_never_more_than_what_is_given() -> None:
    small = Allocation(2, 2, worker_cpu=1.0, ps_cpu=0.25, worker_memory_bytes=1 << 20, ps_memory_bytes=1 << 20)
    use = TRUTH.use("ads", small)
    assert use.cpu == pytest.approx(small.resources.cpu)
    assert use.memory_bytes <= small.resources.memory_bytes


def test_the_oracle_says_the_truth() -> None:
    oracle = Oracle(TRUTH, "ads")
    allocation = FACTS.asked(3)
    assert oracle.predict(Shapes.of([allocation])).rate[0] == rate_of(TRUTH, "ads", allocation)
    assert oracle.doubt(allocation) == ""


def test_the_papers_coefficients_give_its_throughput() -> None:
    """MATH §1: Ψ 1.468564 units of 512 samples at (8, 4, 8, 8) and D = 1; 1.098147 at D = 4."""
    truth = PaperTruth()
    assert truth.rates("d1", shape(8, 4, 8, 8))[0] == pytest.approx(512 * 1.468564, rel=1e-6)
    assert truth.rates("d4", shape(8, 4, 8, 8))[0] == pytest.approx(512 * 1.098147, rel=1e-6)
    assert truth.use("d1", truth.facts("d1").asked(8)).cpu <= truth.facts("d1").asked(8).resources.cpu


def test_an_unknown_truth_is_told_with_those_there_are() -> None:
    with pytest.raises(InvalidArgument, match="one of dl2, pollux, paper"):
        truth_named("guess", DATA)


def test_missing_tables_are_told_with_their_path(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"config_speed\.txt"):
        dl2(tmp_path)


@needs_data
def test_every_run_of_dl2_is_found_again() -> None:
    truth = dl2(DATA)
    assert set(DLRM_LIKE) < set(truth.models) and len(truth.models) == 8
    dssm = Allocation(5, 1, 2.0, 2.0)
    assert rate_of(truth, "dssm", dssm) == pytest.approx(1188.5, abs=0.1)
    assert rate_of(truth, "dssm", Allocation(23, 23, 2.0, 2.0)) < rate_of(truth, "dssm", dssm)
    for model in truth.models:
        bounds = truth.facts(model).bounds
        grid = Shapes.of([Allocation(w, p, 2.0, 2.0) for w in range(1, bounds.workers[1] + 1)
                          for p in range(1, bounds.ps[1] + 1)])  # fmt: skip
        rates = truth.rates(model, grid)
        assert np.all(np.isfinite(rates)) and rates.min() > 0


@needs_data
def test_pollux_replicas_gain_with_less_than_their_number() -> None:
    truth = pollux(DATA)
    assert set(truth.models) == {"bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3"}
    one, four = (rate_of(truth, "imagenet", truth.facts("imagenet").asked(n)) for n in (1, 4))
    assert one < four < 4.5 * one
    assert truth.facts("ncf").asked(3).resources.gpus == {"gpu": 3.0}
