"""What a ScaledObject may say, and what the scaler answers; the examples are ScaledObjects, too."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted
from services.forecaster.config import ForecasterSettings
from services.forecaster.domain.forecast import Forecast, ForecastPoint
from services.forecaster.domain.scaling import high_quantile, highest, scaling
from services.forecaster.scaling import Scaler
from tests.support.forecasts import KnownFuture, SetClock

EXAMPLES = Path(__file__).parents[3] / "examples" / "keda"
NOW = 1_700_000_040.0
LEAST = {"series": "model/ctr", "targetPerReplica": "100"}


def peak(at: float) -> float:
    """A hundred, and five hundred in one minute, five minutes from now."""
    return 500.0 if NOW + 300 <= at < NOW + 360 else 100.0


@pytest_asyncio.fixture
async def app(tmp_path: Path) -> AsyncIterator[KnownFuture]:
    made = KnownFuture(tmp_path, SetClock(NOW), peak)
    yield made
    made.store.close()


@pytest_asyncio.fixture
async def scaler(app: KnownFuture) -> AsyncIterator[Scaler]:
    made = Scaler(app, clock=app.clock, max_streams=2, cache_s=0.05)
    yield made
    await made.stop()


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"series": ""}, ["series"]),
        ({"targetPerReplica": ""}, ["targetPerReplica"]),
        ({"targetPerReplica": "0"}, ["targetPerReplica"]),
        ({"targetPerReplica": "many"}, ["targetPerReplica"]),
        ({"targetPerReplica": "nan"}, ["targetPerReplica"]),
        ({"leadTime": "soon"}, ["leadTime"]),
        ({"leadTime": "30d"}, ["leadTime"]),
        ({"window": "-5"}, ["window"]),
        ({"quantile": "0.2"}, ["quantile"]),
        ({"quantile": "1"}, ["quantile"]),
        ({"activation": "-1"}, ["activation"]),
        ({"fallback": "maybe"}, ["fallback"]),
        ({"leadtime": "5m"}, ["leadtime"]),
        ({"series": "", "quantile": "x", "window": "y"}, ["series", "window", "quantile"]),
    ],
)
def test_wrong_metadata_are_named_field_by_field(changes: dict[str, str], fields: list[str]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        scaling(LEAST | changes)
    assert sorted(each.path for each in caught.value.violations) == sorted(fields)


def test_what_is_left_out_has_defaults_and_times_have_units() -> None:
    ask = scaling(LEAST)
    assert (ask.lead_s, ask.window_s, ask.quantile, ask.activation, ask.falls_back) == (300, 60, 0.8, 0, True)
    ask = scaling(LEAST | {"leadTime": "5m", "window": "90", "fallback": "none", "scalerAddress": "x:1"})
    assert (ask.ahead_s, ask.falls_back, ask.metric_name) == (390, False, "recmesh-model-ctr")


def test_a_long_time_ahead_is_forecast_on_coarser_steps() -> None:
    assert scaling(LEAST).step_s(10.0) == 10.0
    assert scaling(LEAST | {"leadTime": "1d"}).step_s(10.0) == 370.0


def test_quantiles_are_of_the_interval_and_between_as_a_normal_error_has_them() -> None:
    point = ForecastPoint(0, 100, 80, 120)
    assert high_quantile(point, level=0.8, quantile=0.9) == pytest.approx(120)
    assert high_quantile(point, level=0.8, quantile=0.5) == 100
    assert 100 < high_quantile(point, level=0.5, quantile=0.6) < high_quantile(point, level=0.5, quantile=0.7) < 120


def test_the_highest_is_of_steps_that_reach_into_the_time() -> None:
    points = tuple(ForecastPoint(60.0 * n, float(n), 0, float(n)) for n in range(5))
    made = Forecast("s", 60, points, "m", 0, 0.8, 9, 0, "")
    assert highest(made, since=30, until=60, quantile=0.5) == 0
    assert highest(made, since=30, until=61, quantile=0.5) == 1
    assert highest(made, since=60, until=60, quantile=0.5) == 1
    assert highest(made, since=300, until=400, quantile=0.5) is None


@pytest.mark.asyncio
async def test_the_peak_counts_as_soon_as_the_lead_reaches_it(app: KnownFuture, scaler: Scaler) -> None:
    app.measured("model/ctr")
    near = await scaler.expected(scaling(LEAST | {"leadTime": "3m"}))
    far = await scaler.expected(scaling(LEAST | {"leadTime": "5m", "quantile": "0.5"}))
    high = await scaler.expected(scaling(LEAST | {"leadTime": "5m", "quantile": "0.9"}))
    assert near.source == "forecast"
    assert [near.rate, far.rate, high.rate] == pytest.approx([110, 500, 550])


@pytest.mark.asyncio
async def test_many_that_ask_alike_cost_one_forecast(app: KnownFuture, scaler: Scaler) -> None:
    app.measured("model/ctr")
    asks = [scaling(LEAST | {"targetPerReplica": str(n + 1), "activation": str(n)}) for n in range(500)]
    found = await asyncio.gather(*map(scaler.expected, asks))
    await scaler.expected(asks[0])
    assert len({answer.rate for answer in found}) == 1 and len(app.asks) == 1
    app.clock.at += 1.0
    await scaler.expected(asks[0])
    assert len(app.asks) == 2


@pytest.mark.asyncio
async def test_without_a_forecast_what_was_measured_last_counts_unless_told_otherwise(
    app: KnownFuture, scaler: Scaler
) -> None:
    app.measured("model/ctr")
    app.fails = True
    answer = await scaler.expected(scaling(LEAST))
    assert (answer.rate, answer.source, answer.reason) == (100, "last", "no model answers")
    with pytest.raises(FailedPrecondition, match="no model answers"):
        await scaler.expected(scaling(LEAST | {"fallback": "none"}))
    app.measured("old", until=NOW - 86_400)
    with pytest.raises(FailedPrecondition, match="no rate was measured lately"):
        await scaler.expected(scaling(LEAST | {"series": "old"}))
    with pytest.raises(NotFound, match="did you mean model/ctr"):
        await scaler.expected(scaling(LEAST | {"series": "model/ct"}))


@pytest.mark.asyncio
async def test_a_forecast_that_takes_too_long_is_not_waited_for_and_is_there_the_next_time(app: KnownFuture) -> None:
    app.measured("model/ctr")
    go, made = asyncio.Event(), app._forecast

    async def slow(ask: Any) -> Forecast:
        await go.wait()
        return await made(ask)

    app._forecast = slow  # type: ignore[method-assign]  # it waits until it may
    scaler = Scaler(app, clock=app.clock, patience_s=0.01)
    first = await scaler.expected(scaling(LEAST))
    assert (first.source, first.rate) == ("last", 100) and "no forecast within" in first.reason
    go.set()
    await asyncio.gather(*(entry.task for entry in scaler._asks.values()))
    assert (await scaler.expected(scaling(LEAST))).source == "forecast"
    await scaler.stop()


@pytest.mark.asyncio
async def test_the_forecast_before_answers_while_the_next_one_is_made_or_fails(app: KnownFuture) -> None:
    app.measured("model/ctr")
    go, made = asyncio.Event(), app._forecast
    go.set()

    async def slow(ask: Any) -> Forecast:
        await go.wait()
        return await made(ask)

    app._forecast = slow  # type: ignore[method-assign]  # it waits until it may
    scaler = Scaler(app, clock=app.clock, patience_s=0.01, cache_s=30.0)
    ask = scaling(LEAST | {"leadTime": "5m", "quantile": "0.5"})

    async def settled() -> None:
        go.set()
        await asyncio.gather(*(entry.task for entry in scaler._asks.values()))
        await asyncio.sleep(0)
        go.clear()

    await asyncio.gather(scaler.expected(ask), settled())
    first = await scaler.expected(ask)
    assert (first.source, first.rate) == ("forecast", 500)
    app.clock.at += 31
    for _ in range(3):
        assert await scaler.expected(ask) == first      # under way, and slow
    app.clock.at += 31                                  # it is ready now, and its age counts from here
    app.mean = lambda at: 200.0
    await settled()
    asked = len(app.asks)
    second = await scaler.expected(ask)
    assert (second.source, second.rate, len(app.asks)) == ("forecast", 200, asked)
    app.fails = True
    app.clock.at += 31
    await asyncio.gather(scaler.expected(ask), settled())
    assert await scaler.expected(ask) == second         # it failed
    app.measured("model/ctr", until=app.clock.at + 300)
    app.clock.at += 300
    await asyncio.gather(scaler.expected(ask), settled())
    assert (await scaler.expected(ask)).source == "last"
    go.set()
    await scaler.stop()


@pytest.mark.asyncio
async def test_activity_is_told_at_once_and_at_each_change(app: KnownFuture, scaler: Scaler) -> None:
    app.measured("model/ctr")
    stream = scaler.activity(scaling(LEAST | {"activation": "200", "leadTime": "1m"}))
    async with asyncio.timeout(30):
        assert await anext(stream) is False
        following = asyncio.ensure_future(anext(stream))
        for _ in range(4):                      # looks that find the same
            app.clock.at += 1.0
            await asyncio.sleep(0.1)
        assert not following.done() and len(app.asks) > 1
        app.clock.at = NOW + 250
        assert await following is True
        app.clock.at = NOW + 400
        assert await anext(stream) is False
    await stream.aclose()
    assert scaler.streams == 0


@pytest.mark.asyncio
async def test_streams_are_bounded_and_end_when_the_service_stops(app: KnownFuture, scaler: Scaler) -> None:
    app.measured("model/ctr")
    ask = scaling(LEAST)
    streams = [scaler.activity(ask), scaler.held()]
    for stream in streams:
        await anext(stream)
    with pytest.raises(ResourceExhausted):
        await anext(scaler.activity(ask))
    await scaler.stop()
    for stream in streams:
        with pytest.raises(StopAsyncIteration):
            await asyncio.wait_for(anext(stream), 30)


def scaled_objects() -> list[dict[str, Any]]:
    found = [each for file in sorted(EXAMPLES.glob("*.yaml")) for each in yaml.safe_load_all(file.read_text())]
    return [each for each in found if each["kind"] == "ScaledObject"]


@pytest.mark.asyncio
async def test_the_examples_are_answered(app: KnownFuture, scaler: Scaler) -> None:
    triggers = [trigger for each in scaled_objects() for trigger in each["spec"]["triggers"]]
    external = [each for each in triggers if each["type"].startswith("external")]
    assert len(triggers) == 2 and len(external) == 1
    metadata = external[0]["metadata"]
    assert all(isinstance(value, str) for value in metadata.values())      # Kubernetes refuses others
    app.measured(metadata["series"])
    ask = scaling(metadata)
    assert (ask.lead_s, ask.window_s, ask.per_replica, ask.activation) == (300, 120, 120, 0.5)
    assert (await scaler.expected(ask)).source == "forecast" and await scaler.is_active(ask)


def test_the_example_for_prometheus_asks_for_a_gauge_that_is_shown_by_default() -> None:
    [query] = [trigger["metadata"]["query"] for each in scaled_objects() for trigger in each["spec"]["triggers"]
               if trigger["type"] == "prometheus"]
    assert 'recmesh_forecaster_rate_forecast{series="model/flights",horizon="300",quantile="0.9"}' in query
    assert 300 in ForecasterSettings().forecast_shown_s


@pytest.mark.parametrize(
    ("settings", "is_fine"),
    [
        ({"keda_address": "127.0.0.1:0"}, True),
        ({"keda_address": "0.0.0.0:0"}, False),
        ({"keda_address": "0.0.0.0:0", "keda_insecure": True}, True),
        ({"keda_address": "0.0.0.0:0", "keda_tls_cert": "c", "keda_tls_key": "k"}, False),
        ({"keda_address": "0.0.0.0:0", "keda_tls_cert": "c", "keda_tls_key": "k", "keda_tls_ca": "a"}, True),
        ({"keda_address": "0.0.0.0:0", "tls_cert": "c", "tls_key": "k", "tls_ca": "a"}, True),
        ({}, True),
    ],
)
def test_an_address_that_others_reach_needs_certificates(settings: dict[str, Any], is_fine: bool) -> None:
    made = ForecasterSettings(**settings)
    if is_fine:
        assert (made.keda_tls is None) == ("tls_ca" not in "".join(settings))
    else:
        with pytest.raises(InvalidArgument, match="is open") as caught:
            _ = made.keda_tls
        assert caught.value.violations[0].path == "RECMESH_KEDA_ADDRESS"
