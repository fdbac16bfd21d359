"""Nothing that came after a moment is known to what is said there, in backtests and since; not through gaps either."""

import numpy as np
import pytest

from recmesh.plugins.forecasting import Forecaster
from services.forecaster.domain.backtest import origins_for, view_of
from services.forecaster.domain.fitting import advance, fit, speak
from services.forecaster.domain.history import History, leads_for
from services.forecaster.domain.season import season_for
from services.forecaster.domain.series import Bools, Floats, Point, regular
from services.forecaster.domain.tiers import Rows, Stored, grid_of
from services.forecaster.runtimes.models import BUILT_IN
from tests.unit.forecaster.builders import HOUR, daily

CHEAP: list[Forecaster] = [made for made in (make() for make in BUILT_IN.values()) if not made.dear]


def with_gaps(values: Floats, seen: Bools, *, step_s: float = HOUR) -> History:
    """What is known of a series when only some of its values came; it ends with the last of them."""
    points = [Point(at * step_s, float(values[at])) for at in np.flatnonzero(seen)]
    grid = regular(points, step_s=step_s, own_step_s=step_s)
    seasons = season_for(grid.values, step_s=step_s).all
    return History(grid.values, round(grid.start / step_s), step_s, seasons, grid.missing)


def some(count: int, share: float, *, seed: int = 0) -> Bools:
    seen: Bools = np.random.default_rng(seed).uniform(size=count) < share
    seen[[0, -1]] = True
    return seen


@pytest.mark.parametrize("model", CHEAP, ids=lambda model: model.name)
def test_a_backtest_says_the_same_whatever_came_afterwards(model: Forecaster) -> None:
    values = daily(24 * 20)
    seen = some(len(values), 0.6)
    past, leads = with_gaps(values, seen), leads_for(6, HOUR)
    if model.name in ("croston-sba", "tsb"):
        past = History(np.where(past.values > 90, past.values, 0), 0, HOUR, past.seasons, past.missing)
    origins = origins_for(len(values), seasons=past.seasons, horizon=6, missing=past.missing)
    fitted = model.fit(view_of(past, int(origins[0]), leads, 60.0), np.random.default_rng(0))
    said = fitted.rolling(past.values, origins, np.array(leads))
    for row in range(0, len(origins), 9):
        changed = values.copy()
        changed[origins[row] :] = 7.0
        other = with_gaps(changed, seen).values
        if model.name in ("croston-sba", "tsb"):
            other = np.where(other > 90, other, 0)
        again = fitted.rolling(other, origins[[row]], np.array(leads))
        assert again[0] == pytest.approx(said[row], rel=1e-9, abs=1e-9)


def test_what_is_kept_as_said_since_the_choice_was_said_then() -> None:
    values = daily(24 * 20)
    seen = some(len(values), 0.6)
    begin = 24 * 18
    seen[begin - 1] = True
    kept = fit(with_gaps(values[:begin], seen[:begin]), horizon=6, forecasters=CHEAP, rng=np.random.default_rng(0))
    later = advance(kept, with_gaps(values, seen))
    since = np.flatnonzero(later.origins > begin)
    assert len(since) > 5
    for row in since:
        end = int(later.origins[row])
        live = speak(kept, with_gaps(values[:end], seen[:end]), horizon=6, level=0.8)
        assert later.said[row][[0, 5 - 1]] == pytest.approx(live.mean[[0, 6 - 1]])


@pytest.mark.parametrize("every", ["other", "now and then"])
def test_intervals_hold_what_they_promise_where_values_are_missing(every: str) -> None:
    """Random walks: what fills a gap is half of the truth to come."""
    inside, claimed, wrong = [], [], []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        values = np.maximum(300 + np.cumsum(rng.normal(0, 10, 402)), 0)
        seen = np.arange(400) % 2 == 1 if every == "other" else some(400, 0.5, seed=seed)
        past = with_gaps(values[:400], seen, step_s=60.0)
        end = past.end
        kept = fit(past, horizon=1, forecasters=CHEAP, rng=rng)
        made = speak(advance(kept, past), past, horizon=1, level=0.8)
        inside.append(made.low[0] <= values[end] <= made.high[0])
        claimed.append(made.error * past.values.mean())
        wrong.append(abs(made.mean[0] - values[end]))
    assert 0.65 < np.mean(inside) < 0.97
    assert np.mean(claimed) > 0.7 * np.mean(wrong)


def test_intervals_hold_what_they_promise_where_the_older_part_is_kept_as_means() -> None:
    """A mean that stands for ten steps repeats itself, and has what came after: errors of those are none."""
    count, fine = 7 * 1440, 2 * 1440
    values = daily(count, step_s=60.0, noise=8.0)
    rows = [Stored(60.0 * at, float(values[at : at + 10].mean()), 600.0, 10) for at in range(0, count - fine, 10)]
    rows += [Stored(60.0 * at, float(values[at]), 60.0) for at in range(count - fine, count)]
    table = Rows.of(np.array([(row.at, row.value, row.step_s, row.steps) for row in rows], dtype=np.float64))
    begin, inside = count - 400, []

    def known(end: int) -> History:
        grid = grid_of(table, 60.0, now=60.0 * end, limit=count)
        return History(grid.values, round(grid.start / 60), 60.0, season_for(grid.values, step_s=60.0).all, grid.unseen)

    kept = fit(known(begin), horizon=1, forecasters=CHEAP, rng=np.random.default_rng(0))
    assert set(kept.choice.used) & {"lagged", "autoregressive"}     # there was enough to learn from
    for end in range(begin, count, 4):
        past = known(end)
        kept = advance(kept, past)
        made = speak(kept, past, horizon=1, level=0.8)
        inside.append(made.low[0] <= values[end] <= made.high[0])
    assert 0.72 < np.mean(inside) < 0.88
