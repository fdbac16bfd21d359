"""What was said of watched series is kept, scored when the truth has come, and shown."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from prometheus_client import REGISTRY

from recmesh.runtime.errors import InvalidArgument, NotFound
from services.forecaster import app as app_module
from services.forecaster.domain.forecast import Ask, Forecast, ForecastPoint
from services.forecaster.domain.scoring import PastError, Promise, Scored, leads, past_errors, promises
from services.forecaster.domain.series import Point
from services.forecaster.gauges import BoundedGauge, _wape
from services.forecaster.store import Promises
from tests.support.forecasts import KnownFuture, SetClock

NOW = 1_700_000_040.0


@pytest_asyncio.fixture
async def app(tmp_path: Path) -> AsyncIterator[KnownFuture]:
    made = KnownFuture(tmp_path, SetClock(NOW), lambda at: 100.0)
    yield made
    made.store.close()


def shown(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"recmesh_forecaster_{name}", labels)


@pytest.mark.parametrize(
    ("horizon", "found"), [(0, []), (1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (24, [1, 2, 4, 8, 16, 24])]
)
def test_steps_far_ahead_are_kept_ever_more_seldom_and_the_last_always(horizon: int, found: list[int]) -> None:
    assert leads(horizon) == found


def test_promises_are_of_the_kept_leads() -> None:
    points = tuple(ForecastPoint(60.0 * n, float(n), 0.0, 9.0) for n in range(3))
    found = promises(Forecast("s", 60, points, "m", 0, 0.8, 9, 0, "", made=7.0))
    assert [(each.lead, each.at, each.mean) for each in found] == [(1, 0, 0), (2, 60, 1), (3, 120, 2)]


def test_errors_are_of_each_lead_apart() -> None:
    def scored(lead: int, at: float, mean: float, actual: float) -> Scored:
        return Scored(Promise(60, lead, at, 0, mean, mean - 10, mean + 10, 0.8, "m"), actual)

    found = past_errors([scored(1, 0, 100, 105), scored(1, 60, 100, 80), scored(2, 60, 50, 50)])
    assert found == [PastError(60, 1, 2, 25 / 185, 0.5, 0.8), PastError(60, 2, 1, 0.0, 1.0, 0.8)]
    assert [each.residual for each in [scored(1, 0, 100, 105), scored(1, 0, 100, 80)]] == [5, -20]


@pytest.mark.asyncio
async def test_a_promise_is_scored_once_when_its_truth_has_come(app: KnownFuture) -> None:
    app.measured("qps")
    await app.watch(["qps"], horizon=4)
    assert await app.scored("qps") == [] and await app.past_errors("qps") == []
    end = app.told[-1].points[0].at
    came = [Point(end, 120.0), Point(end + 60, 90.0)]
    app.store.put("qps", 60, came)
    app.clock.at += 120
    await app.watch(["qps"], horizon=4)
    found = await app.scored("qps")
    assert [(each.promise.lead, each.promise.at, each.actual) for each in found] == [
        (1, end, 120.0), (2, end + 60, 90.0)
    ]
    assert [each.is_covered for each in found] == [False, True]
    assert [(each.lead, each.count, each.coverage) for each in await app.past_errors("qps")] == [(1, 1, 0), (2, 1, 1)]
    app.store.put("qps", 60, [Point(end, 100.0), Point(end + 120, 70.0)])   # a correction comes too late for the score
    await app.watch(["qps"], horizon=4)
    assert [(each.promise.lead, each.promise.at, each.actual) for each in await app.scored("qps")] == [
        (1, end, 120.0), (2, end + 60, 90.0), (1, end + 120, 70.0)
    ]
    assert shown("past_wape", series="qps", lead="60") == pytest.approx((20 + 30) / (120 + 70))
    assert shown("past_coverage", series="qps", lead="120") == 1.0


@pytest.mark.asyncio
async def test_one_value_on_another_step_does_not_hide_the_history(app: KnownFuture) -> None:
    app.measured("qps", steps=2000)
    await app.observe("qps", 30.0, [Point(NOW - 30, 1e6)])
    made = await app.forecast(Ask("qps", horizon=2, now=NOW))
    assert (made.step_s, made.history) == (60.0, 2000)
    assert await app.step_of("qps") == 60.0
    asked = await app.forecast(Ask("qps", horizon=2, step_s=30.0, now=NOW))     # whoever asks for it gets it
    assert (asked.step_s, asked.history) == (30.0, 1)


@pytest.mark.asyncio
async def test_a_value_of_the_future_is_refused_and_the_others_of_its_batch_are_kept(app: KnownFuture) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await app.observe("qps", 60.0, [Point(NOW + 7200, 1.0)])
    assert [each.path for each in caught.value.violations] == ["points[0].at"]
    assert await app.observe_many(60.0, {"qps": [Point(NOW, 1.0)], "later": [Point(NOW + 7200, 1.0)]}) == 1


@pytest.mark.asyncio
async def test_what_is_refused_is_counted_however_it_was_told(app: KnownFuture) -> None:
    ahead = [Point(NOW + 7200, 1.0)]
    before = shown("series_refused_total") or 0.0
    with pytest.raises(InvalidArgument):
        await app.observe("qps", 60.0, ahead)
    assert shown("series_refused_total") == before + 1
    with pytest.raises(InvalidArgument):
        await app.observe_many(60.0, {"qps": ahead, "later": ahead})
    assert shown("series_refused_total") == before + 3
    await app.observe_many(60.0, {"qps": [Point(NOW, 1.0)], "later": ahead})
    assert shown("series_refused_total") == before + 4


@pytest.mark.asyncio
async def test_promises_are_bounded_for_each_lead(app: KnownFuture) -> None:
    kept = Promises(app.store, kept=3)
    app.measured("qps")
    for n in range(8):
        kept.keep("qps", 60, [Promise(60, lead, 60.0 * n, 0, 1, 0, 2, 0.8, "m") for lead in (1, 2)])
    app.store.put("qps", 60, [Point(60.0 * n, 1.0) for n in range(8)])
    assert kept.settle("qps", 60, end=1e9) == 6
    assert [(each.promise.at, each.promise.lead) for each in kept.scored("qps", 60, limit=4)] == [
        (360, 1), (360, 2), (420, 1), (420, 2)
    ]


@pytest.mark.asyncio
async def test_patterns_and_what_somebody_scales_by_are_watched_for_a_while(
    app: KnownFuture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("model/a", "model/b", "topic/c"):
        app.measured(name)
    app.wanted("topic/c")
    assert await app.watched(["model/*", "new"]) == ["new", "topic/c", "model/a", "model/b"]
    app.clock.at += app_module.WANTED_S + 1
    assert await app.watched(["model/?"]) == ["model/a", "model/b"]
    monkeypatch.setattr(app_module, "MAX_WATCHED", 1)
    assert await app.watched(["model/?"]) == ["model/a"]


@pytest.mark.asyncio
async def test_one_that_cannot_be_forecast_does_not_keep_the_others_back(app: KnownFuture) -> None:
    app.measured("b")
    app.measured("old", until=120.0)
    app.store.put("a", 60, [])
    await app.watch(["unknown", "old", "b"], horizon=2)
    assert sorted(made.series for made in app.told) == ["b", "old"]
    with pytest.raises(NotFound):
        await app.scored("unknown")


@pytest.mark.asyncio
async def test_one_whose_forecast_breaks_does_not_keep_the_others_back(app: KnownFuture) -> None:
    for name in ("a", "b", "c"):
        app.measured(name)
    made = app._forecast

    async def breaks(ask: Ask) -> Forecast:
        if ask.series == "b":
            raise ValueError("of a model")
        return await made(ask)

    app._forecast = breaks  # type: ignore[method-assign]  # one series' models are broken
    await app.watch(["a", "b", "c"], horizon=2)
    assert sorted(each.series for each in app.told) == ["a", "c"]
    assert app.counts()["forecasts_failed"] == 1


@pytest.mark.asyncio
async def test_a_few_watched_series_are_forecast_at_the_same_time(app: KnownFuture) -> None:
    names = [f"s{n}" for n in range(3 * app_module.AT_ONCE)]
    for name in names:
        app.measured(name)
    made, most, now, full = app._forecast, 0, 0, asyncio.Event()

    async def together(ask: Ask) -> Forecast:
        nonlocal most, now
        now += 1
        most = max(most, now)
        if now == app_module.AT_ONCE:
            full.set()
        await asyncio.wait_for(full.wait(), 30)         # one after the other would wait in vain
        await asyncio.sleep(0)
        now -= 1
        return await made(ask)

    app._forecast = together  # type: ignore[method-assign]  # it waits for the others
    await app.watch(names, horizon=2)
    assert sorted(each.series for each in app.told) == sorted(names) and most == app_module.AT_ONCE


@pytest.mark.asyncio
async def test_past_errors_are_read_once_until_there_are_others(
    app: KnownFuture, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.measured("qps")
    await app.watch(["qps"], horizon=4)
    looks: list[str] = []
    scored = app.scored

    async def looked(series: str) -> list[Scored]:
        looks.append(series)
        return await scored(series)

    monkeypatch.setattr(app, "scored", looked)
    for _ in range(3):
        assert await app.past_errors("qps") == []
    assert looks == []                                  # what watching found
    app.store.put("qps", 60, [Point(app.told[-1].points[0].at, 120.0)])
    app.clock.at += 60
    await app.watch(["qps"], horizon=4)
    assert len(await app.past_errors("qps")) == 1 and looks == ["qps"]
    app.clock.at += app_module.ERRORS_S + 1             # another replica may have scored some
    await app.past_errors("qps")
    assert looks == ["qps"] * 2


@pytest.mark.asyncio
async def test_gauges_look_as_far_ahead_as_they_should_and_leave_with_their_series(app: KnownFuture) -> None:
    app.mean = lambda at: 300.0 if NOW + 600 <= at < NOW + 660 else 100.0
    app.measured("gauged")
    await app.watch(["gauged"], horizon=2)
    found = {horizon: shown("rate_forecast", series="gauged", horizon=horizon, quantile="0.5")
             for horizon in ("60", "300", "900", "3600", "7200")}
    assert found == {"60": 100, "300": 100, "900": 300, "3600": 300, "7200": None}
    assert shown("rate_forecast", series="gauged", horizon="900", quantile="0.9") == pytest.approx(330)
    app.clock.at += app_module.WANTED_S + 1
    await app.watch([], horizon=2)
    assert shown("rate_forecast", series="gauged", horizon="900", quantile="0.5") is None


def test_label_sets_are_bounded() -> None:
    gauge = BoundedGauge(_wape, max_sets=2)
    for n in range(4):
        gauge.set((f"bounded-{n}", "60"), float(n), at=float(n))
    assert [shown("past_wape", series=f"bounded-{n}", lead="60") for n in range(4)] == [None, None, 2.0, 3.0]
    gauge.expire(before=3.0)
    assert shown("past_wape", series="bounded-2", lead="60") is None
    gauge.expire(before=9.0)
