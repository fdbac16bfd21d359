"""Protobuf in, domain out, and back."""

from collections.abc import Iterable, Sequence

from recmesh.pb import forecaster_pb2 as pb
from services.forecaster.domain.forecast import Ask, Forecast
from services.forecaster.domain.scoring import PastError
from services.forecaster.domain.series import Point, SeriesInfo
from services.forecaster.domain.tiers import Stored


def points(messages: Iterable[pb.Point]) -> list[Point]:
    """Rates."""
    return [Point(each.at, each.value) for each in messages]


def ask(request: pb.ForecastRequest) -> Ask:
    """What was asked; 0 is "choose for me"."""
    return Ask(
        request.series, horizon=request.horizon, step_s=request.step_s, level=request.level, now=request.now,
        season_s=request.season_s,
    )  # fmt: skip


def forecast_reply(value: Forecast, past: Iterable[PastError]) -> pb.ForecastReply:
    """An answer."""
    return pb.ForecastReply(
        points=[pb.ForecastPoint(at=p.at, mean=p.mean, low=p.low, high=p.high) for p in value.points],
        model=value.model,
        season_s=value.season_s,
        level=value.level,
        history=value.history,
        error_wape=value.error_wape,
        note=value.note,
        step_s=value.step_s,
        past=[
            pb.PastError(
                step_s=each.step_s, lead=each.lead, count=each.count, wape=each.wape, coverage=each.coverage,
                level=each.level,
            )
            for each in past
        ],
        drift=value.drift,
    )


def series_reply(found: Iterable[SeriesInfo]) -> pb.SeriesReply:
    """What is stored."""
    return pb.SeriesReply(
        series=[
            pb.SeriesInfo(
                series=each.series, step_s=each.step_s, points=each.points, first=each.first, last=each.last,
                last_value=each.last_value,
            )
            for each in found
        ]
    )  # fmt: skip


def history_reply(step_s: float, values: Sequence[Stored]) -> pb.HistoryReply:
    """A series' values."""
    points = [pb.Point(at=each.at, value=each.value, step_s=each.step_s) for each in values]
    return pb.HistoryReply(points=points, step_s=step_s)
