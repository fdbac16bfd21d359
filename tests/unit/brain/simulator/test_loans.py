"""Simulated days of lending."""

import numpy as np
import pytest

from recmesh.plugins.planning import Floats
from services.brain.domain.loans.planning import Rules
from services.brain.simulator.loans.engine import ByForecast, Hindsight, Reactive, World, fixed, simulated
from services.brain.simulator.loans.peaks import Promotions, with_promotions
from services.brain.simulator.online.forecasts import Given

WORLD = World(per_unit=100.0, target=0.7)
RULES = Rules(own=2, most=10, most_draining=4, drain_s=120.0, start_s=180.0)


def day() -> Floats:
    """A plateau that begins and ends within a minute."""
    rates = np.full(600, 100.0)
    rates[200:400] = 500.0
    return rates


def seen_by(rates: Floats, ahead: int = 60) -> Given:
    """A forecaster that knows."""
    rows = np.stack([rates[np.minimum(np.arange(at, at + ahead), len(rates) - 1)] for at in range(len(rates))])
    return Given(0, rows, rows, np.zeros_like(rows))


def test_a_forecast_peak_finds_its_units_and_a_reactive_rule_comes_too_late() -> None:
    """Both pay for the same leads."""
    rates, rng = day(), np.random.default_rng(1)
    calm = World(per_unit=100.0, target=0.7, slow_share=0.0)
    told = simulated(rates, ByForecast(seen_by(rates), 1, RULES, calm), RULES, calm, rng, first=1, last=600)
    late = simulated(rates, Reactive(RULES, calm), RULES, calm, np.random.default_rng(1), first=1, last=600)
    assert told.violated == 0.0
    assert late.violated > 500.0
    assert told.late == 0
    assert max(told.serving) >= 8
    assert told.serving[-1] == told.held[-1] == RULES.own


def test_hindsight_holds_the_least_that_leads_allow() -> None:
    """From a lead before until a return after."""
    held = Hindsight(day(), RULES, WORLD).held(0, 600)
    assert np.flatnonzero(held > RULES.own).tolist() == list(range(195, 401))
    assert held.max() == 8


def test_a_fixed_pool_lends_nothing() -> None:
    """Enough for the peak, and all the time."""
    rules = fixed(RULES, units=8)
    found = simulated(day(), Reactive(rules, WORLD), rules, WORLD, np.random.default_rng(0), first=1, last=600)
    assert (found.violated, found.loans, set(found.held)) == (0.0, 0, {8})


def test_late_returns_are_seen_where_a_peak_outlasts_its_forecast() -> None:
    """The forecaster told for an hour that it ends in ten minutes; serving kept what it used."""
    rates = day()
    rows = np.full((600, 60), 100.0)
    rows[190:, :25] = 500.0
    never = Given(0, rows, rows, np.zeros_like(rows))
    rates[200:] = 500.0
    rules = Rules(own=2, most=10, most_draining=4, drain_s=120.0, start_s=180.0, slack_s=0.0, notice_s=4000.0)
    rule = ByForecast(never, 1, rules, WORLD)
    found = simulated(rates, rule, rules, WORLD, np.random.default_rng(0), first=1, last=600)
    assert found.late > 0
    assert found.serving[-1] >= 8


def test_promotions_are_the_same_for_the_same_seed_and_lift_what_is_there() -> None:
    """Every evening, and never below the series."""
    calm = np.full(3 * 1440, 10.0)
    made = with_promotions(calm, Promotions(surprises_per_week=0.0), np.random.default_rng(3))
    again = with_promotions(calm, Promotions(surprises_per_week=0.0), np.random.default_rng(3))
    assert (made == again).all()
    assert made.min() == 10.0
    for evening in range(3):
        assert made[evening * 1440 + 1240] == pytest.approx(16.0, rel=0.06)
        assert made[evening * 1440 + 600] == 10.0
