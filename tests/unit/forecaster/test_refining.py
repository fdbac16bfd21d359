"""Dear models where they pay."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from recmesh.plugins.forecasting import Fitted, Floats, Forecaster, Ints, SeriesView
from recmesh.runtime.errors import DeadlineExceeded
from services.forecaster.app import App
from services.forecaster.domain.budget import GAIN, Worth, next_to_refine
from services.forecaster.domain.fitting import Asked, Kept, Refined
from services.forecaster.domain.forecast import Ask, Forecast, Predicted, wape
from services.forecaster.domain.series import Point
from services.forecaster.runtimes import models
from services.forecaster.runtimes.pool import ModelPool
from services.forecaster.store import SqlStore
from tests.support.forecasts import SetClock
from tests.unit.forecaster.builders import HOUR, daily, history

DAY = 86_400.0


def test_the_series_with_the_most_traffic_that_is_wrong_comes_first() -> None:
    small, sure, wrong = Worth("small", 10, 0.3), Worth("sure", 1000, 0.01), Worth("wrong", 1000, 0.3)
    assert next_to_refine([small, sure, wrong], now=0) == wrong


def test_what_brought_nothing_and_what_nobody_asks_for_waits() -> None:
    tried = Worth("tried", 1000, 0.3).found(-0.1, 30, now=1000)
    assert next_to_refine([tried], now=1000) is None
    asked = Worth("tried", 1000, 0.3, asked=5, gain=-0.1, seconds=30, tried_at=1000)
    fresh = Worth("fresh", 100, 0.3)
    assert next_to_refine([asked, fresh], now=1000) == fresh
    assert next_to_refine([asked, fresh], now=1000 + 10 * DAY) == asked  # forgotten: the series may have changed


def test_a_trial_is_forgotten_by_half_each_day() -> None:
    tried = Worth("s", 100, 0.5, gain=0.0, seconds=10, tried_at=1000)
    assert tried.per_second(1000) == 0
    assert tried.per_second(1000 + DAY) == pytest.approx(100 * 0.5 * GAIN / 2 / 10)


class _Knows:
    """Dear, and right: it has seen the series without its noise."""

    name, dear = "knows", True

    def __init__(self, truth: Floats) -> None:
        self._truth = truth

    def fit(self, view: SeriesView, rng: np.random.Generator) -> Fitted:
        return _Truth(self._truth)


class _Truth:
    def __init__(self, truth: Floats) -> None:
        self._truth = truth

    def rolling(self, values: Floats, origins: Ints, leads: Ints) -> Floats:
        return np.asarray(self._truth[origins[:, None] + leads[None, :] - 1])


def test_a_dear_model_that_is_better_answers_from_then_on_and_one_that_is_not_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = daily(24 * 30)
    asked = Asked("refined", history(values[: 24 * 25]), 12)
    cheap = models.forecasters((), dear=False)

    def known(dear_models: Sequence[Forecaster]) -> None:
        monkeypatch.setattr(
            models, "forecasters", lambda wanted, *, dear: (*cheap, *dear_models) if dear else cheap
        )

    known([_Knows(np.full(len(values), 1.0))])
    refined = models.refine(asked)
    assert refined.kept is None and refined.gain < 0.02 and refined.seconds > 0
    known([_Knows(values)])
    refined = models.refine(asked)
    assert refined.kept is not None and refined.gain > 0.9
    models.adopt("refined", refined.kept)
    told = models.predict(asked)
    assert "knows" in told.model
    assert wape(values[24 * 25 : 24 * 25 + 12], told.mean) < 0.001


@pytest.mark.asyncio
async def test_what_dear_models_learned_passes_the_service_as_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    values = daily(24 * 30)
    asked, cheap = Asked("packed", history(values[: 24 * 25]), 12), models.forecasters((), dear=False)
    every = (*cheap, _Knows(values))
    monkeypatch.setattr(models, "forecasters", lambda wanted, *, dear: every if dear else cheap)
    passed: list[object] = []

    def here(function: Callable[..., object], *args: object, limit_s: float) -> "asyncio.Future[object]":
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        answer.set_result(function(*args))
        passed.extend([*args, answer.result()])
        return answer

    pool = ModelPool()
    for lane in (pool._dear, *pool._lanes):
        monkeypatch.setattr(lane, "submit", here)
    refined = await pool.refine(asked)
    assert refined.gain > 0.9 and not any(isinstance(each, Kept) for each in (refined.kept, *passed))
    [packed] = [each for each in passed if isinstance(each, bytes)]
    await asyncio.to_thread(models.adopt_packed("packed", packed).join)
    assert "knows" in models.predict(asked).model
    assert "knows" in models.predict(asked).model       # it stays


class _Slow:
    """Models whose trial fails after a while."""

    def __init__(self, clock: SetClock) -> None:
        self.clock, self.fails = clock, True
        self.asked: list[Asked] = []

    async def predict(self, asked: Asked) -> Predicted:
        flat = np.full(asked.horizon, 5.0)
        return Predicted("flat", flat, flat, flat, error=0.5)

    async def refine(self, asked: Asked) -> Refined:
        self.asked.append(asked)
        self.clock.at += 700.0
        if self.fails:
            raise DeadlineExceeded("the dear models did not end in time", reason="TIMED_OUT")
        return Refined(0.1, 40.0, None)


@pytest.fixture
def trials(tmp_path: Path) -> Iterator[tuple[App, _Slow]]:
    clock = SetClock(HOUR * 1000)
    store, models_ = SqlStore(f"sqlite:///{tmp_path}/forecaster.sqlite"), _Slow(clock)
    store.open()
    store.put("qps", 60, [Point(clock.at - 60 * back, 5.0) for back in range(200, 4, -1)])

    async def updated(_: Forecast) -> None:
        return None

    yield App(store, models_, clock=clock, updated=updated), models_
    store.close()


@pytest.mark.asyncio
async def test_a_trial_that_fails_costs_its_time_and_its_turn(trials: tuple[App, _Slow]) -> None:
    app, tried = trials
    await app.forecast(Ask("qps", horizon=4))
    assert await app.refine() == pytest.approx(700.0)
    assert await app.refine() == 0.0 and len(tried.asked) == 1
    [(_, worth)] = app._worth.values()
    assert worth.seconds == pytest.approx(700.0) and worth.gain == 0


@pytest.mark.asyncio
async def test_dear_models_are_tried_for_the_longest_horizon_that_was_asked_lately(
    trials: tuple[App, _Slow]
) -> None:
    app, tried = trials
    tried.fails = False
    await app.forecast(Ask("qps", horizon=60, now=app._clock.now()))    # 4 steps have not come yet
    await app.forecast(Ask("qps", horizon=1))
    assert await app.refine() == 40.0
    assert 64 <= tried.asked[0].horizon <= 80
    for _ in range(5000):
        app._note_worth("qps 60 0", Ask("qps", horizon=1), 1.0, 0.5, 1)
    assert app._worth["qps 60 0"][1].horizon <= 3


class _Here:
    """The real models, in this process."""

    def __init__(self) -> None:
        self.tried: list[str] = []
        self.asked: list[Asked] = []

    async def predict(self, asked: Asked) -> Predicted:
        return models.predict(asked)

    async def refine(self, asked: Asked) -> Refined:
        self.tried.append(asked.key.split()[0])
        self.asked.append(asked)
        refined = models.refine(asked)
        if refined.kept is not None:
            models.adopt(asked.key, refined.kept)
        return refined


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[App, _Here, SetClock, Floats]]:
    """Hours of two series, one a hundredth of the other, and a dear model that knows the large one."""
    values = daily(24 * 30)
    models._kept.clear()
    cheap = models.forecasters((), dear=False)
    every = (*cheap, _Knows(values))
    monkeypatch.setattr(models, "forecasters", lambda wanted, *, dear: every if dear else cheap)
    clock = SetClock(HOUR * 24 * 25)
    store, here = SqlStore(f"sqlite:///{tmp_path}/forecaster.sqlite"), _Here()
    store.open()
    for name, share in (("large", 1.0), ("small", 0.01)):
        store.put(name, HOUR, [Point(HOUR * at, share * float(values[at])) for at in range(24 * 25)])

    async def updated(_: Forecast) -> None:
        return None

    yield App(store, here, clock=clock, updated=updated), here, clock, values
    models._kept.clear()
    store.close()


@pytest.mark.asyncio
async def test_the_series_that_pays_most_is_tried_first_and_its_forecasts_get_better(
    real: tuple[App, _Here, SetClock, Floats]
) -> None:
    app, here, clock, values = real
    before = await app.forecast(Ask("large", horizon=12, now=clock.at))
    await app.forecast(Ask("small", horizon=12, now=clock.at))
    spent_s = await app.refine()
    assert here.tried == ["large"] and spent_s > 0 and app.counts()["refined"] == 1
    await app.refine()
    assert here.tried == ["large", "small"], "nobody has asked for the large one since"
    after = await app.forecast(Ask("large", horizon=12, now=clock.at))
    errors = [wape(values[600:612], np.array([point.mean for point in each.points])) for each in (before, after)]
    assert "knows" in after.model and "knows" not in before.model and errors[1] < 0.001 < errors[0]
    tried = {key.split()[0]: worth for key, (_, worth) in app._worth.items()}
    assert tried["large"].gain > 0.9 and tried["large"].tried_at == clock.at and tried["large"].asked == 1
    assert tried["small"].gain < 0.02, "it is wrong there by a factor of 100"
    again = await app.forecast(Ask("small", horizon=12, now=clock.at))
    assert "knows" not in again.model


@pytest.mark.asyncio
async def test_a_trial_learns_from_what_has_come_since_the_ask(real: tuple[App, _Here, SetClock, Floats]) -> None:
    app, here, clock, values = real
    await app.forecast(Ask("large", horizon=12, now=clock.at))
    clock.at += 4 * HOUR
    await app.observe("large", HOUR, [Point(HOUR * at, float(values[at])) for at in range(600, 604)])
    await app.refine()
    assert len(here.asked[0].history.values) == 604 and here.asked[0].key == "large 3600 0"


@pytest.mark.asyncio
async def test_forecasts_of_the_past_ask_for_no_trial(real: tuple[App, _Here, SetClock, Floats]) -> None:
    app, here, clock, _ = real
    await app.forecast(Ask("large", horizon=12, now=clock.at - 48 * HOUR))
    assert await app.refine() == 0.0 and here.tried == []


@pytest.mark.asyncio
async def test_a_series_that_has_gone_gives_its_turn_away(real: tuple[App, _Here, SetClock, Floats]) -> None:
    app, here, clock, values = real
    await app.forecast(Ask("large", horizon=12))
    clock.at += 10 * HOUR
    await app.observe("small", HOUR, [Point(HOUR * at, 0.01 * float(values[at])) for at in range(600, 610)])
    await app.forecast(Ask("small", horizon=12))
    await app.forget(older_than_s=1e9, points_per_series=10_000, idle_s=5 * HOUR)
    assert await app.refine() == 0.0 and here.tried == [] and [key.split()[0] for key in app._worth] == ["small"]
    await app.refine()
    assert here.tried == ["small"]


@pytest.mark.asyncio
async def test_a_series_that_is_forgotten_while_it_is_tried_leaves_no_trace(
    trials: tuple[App, _Slow], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, tried = trials
    tried.fails = False
    await app.forecast(Ask("qps", horizon=4))
    refine = tried.refine

    async def meanwhile(asked: Asked) -> Refined:
        app._worth.clear()      # others were asked for, and there are only so many places
        return await refine(asked)

    monkeypatch.setattr(tried, "refine", meanwhile)
    assert await app.refine() == 40.0 and app._worth == {}
    assert await app.refine() == 0.0, "nobody has asked for anything"
