"""A series as pictures: what was measured and is expected, what was said before and came, and errors by lead."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypeVar

from recmesh.runtime.ops import Tone, text
from recmesh.runtime.ops.plots import Axis, Dot, Dots, Moment, Plot, Scale
from services.forecaster.domain.forecast import Forecast
from services.forecaster.domain.scoring import PastError, Scored
from services.forecaster.domain.tiers import Stored

MOST_DOTS = 300
TIME = Axis("time, UTC", Scale.TIME)
T = TypeVar("T")
RATE = Axis("per second", from_zero=True)


def ahead(series: str, measured: Sequence[Stored], made: Forecast | None, *, now: float, why_not: str = "") -> Plot:
    """The newest rates, the forecast in its interval, and now."""
    expected = [
        Dot(each.at, each.mean, each.low, each.high, note=f"{moment(each.at)}: {each.mean:.4g}/s expected, "
            f"{each.low:.4g} to {each.high:.4g}")
        for each in (made.points if made else ())
    ]  # fmt: skip
    note = f"{made.model}, interval of {made.level:.0%}: {made.note}" if made else why_not
    return Plot(
        f"{series}: measured and expected", TIME, RATE,
        [
            Dots("measured", [_measured(each) for each in _thinned(measured)], is_joined=True),
            Dots("expected", _thinned(expected), Tone.OK, is_joined=True, is_band=True),
        ],
        moments=[Moment(now, "now", Tone.IDLE)], note=note, empty="no rate is kept of it",
    )  # fmt: skip


def before(series: str, scored: Sequence[Scored], *, lead: int) -> Plot:
    """What was said so many steps before, in its interval, and what came."""
    mine = [each for each in scored if each.promise.lead == lead]
    said = [
        Dot(each.promise.at, each.promise.mean, each.promise.low, each.promise.high,
            note=f"{moment(each.promise.at)}: {each.promise.mean:.4g}/s was said, {each.actual:.4g} came")
        for each in mine
    ]  # fmt: skip
    came = [Dot(each.promise.at, each.actual, note=f"{moment(each.promise.at)}: {each.actual:.4g}/s") for each in mine]
    step_s = mine[-1].promise.step_s if mine else 0.0
    return Plot(
        f"{series}: said {text.duration(lead * step_s)} before, and come" if mine else f"{series}: said, and come",
        TIME, RATE,
        [
            Dots("said before", _thinned(said), Tone.OK, is_joined=True, is_band=True),
            Dots("came", _thinned(came), is_joined=True),
        ],
        empty="no forecast of it has met its truth yet: those of watched series (RECMESH_FORECAST_WATCH) are kept",
    )  # fmt: skip


def errors(series: str, past: Sequence[PastError]) -> Plot:
    """How wrong forecasts were by how far ahead they looked, and how often the truth lay in the interval."""
    return Plot(
        f"{series}: error by how far ahead", Axis("ahead, s", Scale.LOG), Axis("%", from_zero=True),
        [
            Dots("error (WAPE)", [
                Dot(each.lead_s, 100 * each.wape, note=f"{text.duration(each.lead_s)} ahead: wrong by {each.wape:.1%}, "
                    f"{each.count} forecasts")
                for each in past
            ], Tone.WARN, is_joined=True),
            Dots("truth within the interval", [
                Dot(each.lead_s, 100 * each.coverage, note=f"{each.coverage:.0%} of {each.count}; {each.level:.0%} "
                    "should be")
                for each in past
            ], Tone.OK, is_joined=True),
        ],
        note=f"{past[0].level:.0%} of the truths should be within" if past else "",
        empty="no forecast of it has met its truth yet",
    )  # fmt: skip


def moment(at: float) -> str:
    """In UTC, without the year."""
    return datetime.fromtimestamp(at, UTC).strftime("%m-%d %H:%M:%S")


def _measured(each: Stored) -> Dot:
    return Dot(each.at, each.value, note=f"{moment(each.at)}: {each.value:.4g}/s over {text.duration(each.step_s)}")


def _thinned(items: Sequence[T]) -> Sequence[T]:
    return items[:: max(1, len(items) // MOST_DOTS)]
