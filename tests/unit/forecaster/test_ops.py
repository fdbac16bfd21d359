"""The page: a chosen series with its pictures, those that scale by it, and what is said when nothing is known."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from recmesh.runtime.ops.plots import svg
from services.forecaster.domain.forecast import Ask
from services.forecaster.domain.scaling import scaling
from services.forecaster.domain.series import Point
from services.forecaster.ops import View
from services.forecaster.ops.plots import moment
from services.forecaster.scaling import Scaler
from tests.support.forecasts import KnownFuture, SetClock

pytestmark = pytest.mark.asyncio
NOW = 1_700_000_040.0


@pytest_asyncio.fixture
async def app(tmp_path: Path) -> AsyncIterator[KnownFuture]:
    made = KnownFuture(tmp_path, SetClock(NOW), lambda at: 100.0 + at % 600 / 10)
    yield made
    made.store.close()


def view(app: KnownFuture) -> View:
    return View(app, Scaler(app, clock=app.clock), clock=app.clock)


async def test_a_series_is_drawn_with_its_forecast_interval_and_past_error(app: KnownFuture) -> None:
    app.measured("model/<ctr>", steps=30)
    for _ in range(12):
        await app.watch(["model/<ctr>"], horizon=4)
        app.clock.at += 60
        app.measured("model/<ctr>", steps=1)
    ahead, before, errors = map(svg, await view(app)._plots({"series": "model/<ctr>"}))
    assert 'class="band ok"' in ahead and "measured" in ahead and ">now<" in ahead
    assert "said 4 min 0 s before" in before and 'class="band ok"' in before
    assert "wrong by 0.0%" in errors and "80% should be" in errors
    assert "<ctr>" not in ahead and "model/&lt;ctr&gt;" in ahead


async def test_while_somebody_looks_it_is_forecast_now_and_then_only(app: KnownFuture) -> None:
    app.measured("qps")
    shown = view(app)
    for _ in range(5):
        await shown._plots({"series": "qps"})
        app.clock.at += 10
    assert len(app.asks) == 2


async def test_a_series_without_a_forecast_shows_its_past_and_why(app: KnownFuture) -> None:
    assert list(await view(app)._plots({})) == []
    app.measured("qps")
    app.fails = True
    ahead, before, errors = await view(app)._plots({})
    assert ahead.note == "no forecast: no model answers" and "<polyline" in svg(ahead)
    assert svg(before) == svg(errors) == "" and "watched series" in before.empty
    [unknown] = await view(app)._plots({"series": "qpz"})
    assert "did you mean qps" in unknown.title


async def test_those_who_scale_are_listed_with_why_there_is_no_forecast(app: KnownFuture) -> None:
    scaler = Scaler(app, clock=app.clock)
    shown = View(app, scaler, clock=app.clock)
    app.measured("a")
    app.store.put("b", 60, [Point(NOW - 60, 7.0)])
    await scaler.expected(scaling({"series": "a", "targetPerReplica": "10"}))
    app.fails = True
    await scaler.expected(scaling({"series": "b", "targetPerReplica": "10"}))
    rows = [[getattr(cell, "text", cell) for cell in row] for row in shown._scaled()]
    assert [row[0] for row in rows] == ["b", "a"]
    assert rows[0][3:] == ["7/s", "measured last", "no model answers"] and rows[1][4] == "forecast"
    assert shown.figures()["scaler_streams"] == 0
    await scaler.stop()


async def test_who_asks_again_and_again_has_one_line_with_the_newest_answer(app: KnownFuture) -> None:
    app.measured("qps")
    for _ in range(5):
        await app.forecast(Ask("qps", horizon=4))
        app.clock.at += 10
    await app.forecast(Ask("qps", horizon=8))
    rows = list(view(app)._forecasts())
    assert [row[5] for row in rows] == [8, 4]
    assert rows[1][0] == moment(app.clock.at - 10)
