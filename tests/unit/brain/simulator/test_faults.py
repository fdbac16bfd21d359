"""The failure model."""

import numpy as np
import pytest

from services.brain.simulator.faults import DAY_S, Clock, Faults, hazard, share_hit


@pytest.mark.parametrize(("processes", "share"), [(50, 0.53031), (100, 0.7794)])
def test_share_of_jobs_that_lose_a_process_in_a_day(processes: int, share: float) -> None:
    assert share_hit(0.015, processes) == pytest.approx(share, abs=5e-5)


def test_the_hazard_gives_that_share() -> None:
    assert 1 - np.exp(-hazard(0.015) * 50 * DAY_S) == pytest.approx(share_hit(0.015, 50))
    assert Faults(0.015).death_hazard == hazard(0.015) and Faults().death_hazard == 0.0


def test_a_clock_counts_processes_not_time() -> None:
    """Twice as many processes reach the same fault in half the time, however the number changes on the way."""
    clock = Clock(hazard(0.5), np.random.default_rng(0))
    alone = clock.due_in(1)
    assert clock.due_in(2) == pytest.approx(alone / 2)
    clock.spend(alone / 2)
    assert clock.due_in(1) == pytest.approx(alone / 2)
    clock.spend(alone)
    assert clock.due_in(4) == 0.0


def test_drawn_faults_hit_the_share_that_the_formula_says() -> None:
    rng = np.random.default_rng(3)
    rate = Faults(0.015).death_hazard
    hit = [Clock(rate, rng).due_in(50) < DAY_S for _ in range(4000)]
    assert np.mean(hit) == pytest.approx(0.53031, abs=0.02)


def test_without_a_hazard_nothing_ever_happens() -> None:
    assert Clock(0.0, np.random.default_rng(0)).due_in(1000) == np.inf
