"""`recmesh forecast`: series, a forecast with its chart, and how wrong it was; as text and as JSON."""

import inspect
import json
from typing import Any

import pytest
from fastapi import FastAPI

from recmesh.cli import forecast_verbs
from recmesh.cli.charts import bars
from recmesh.cli.output import Shape
from recmesh.client import Client
from recmesh.runtime.errors import InvalidArgument, NotFound
from services.forecaster.domain.forecast import DEFAULT_LEVEL, MAX_LEVEL, MIN_LEVEL, Ask, checked_ask
from services.gateway.rest.planning import router

AT = 1_700_000_000.0
TOLD: dict[str, Any] = {
    "points": [{"at": AT + 60 * n, "mean": 10.0 * n, "low": 5.0 * n, "high": 20.0 * n} for n in range(30)],
    "model": "SeasonalNaive", "season_s": 86_400.0, "level": 0.8, "history": 4321, "error_wape": 0.051,
    "note": "repeats the day before", "step_s": 60.0,
    "past": [{"step_s": 60.0, "lead": 4, "count": 88, "wape": 0.072, "coverage": 0.81, "level": 0.8}],
}  # fmt: skip
SERIES = {"series": "model/ctr", "step_s": 60.0, "points": 4321, "first": AT, "last": AT, "last_value": 12.5}


class FakeMesh:
    """Knows one series."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.series = [SERIES]

    def __enter__(self) -> "FakeMesh":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def forecasts(self, **asked: Any) -> dict[str, Any]:
        self.asked.append(("", asked))
        return {"series": self.series}

    def forecast(self, series: str, **asked: Any) -> dict[str, Any]:
        self.asked.append((series, asked))
        if series != "model/ctr":
            raise NotFound(f"series {series!r} is unknown; did you mean model/ctr?")
        return TOLD

    def rates(self, series: str, **asked: Any) -> dict[str, Any]:
        self.asked.append((series, asked))
        return {"points": [{"at": AT - 60 * n, "value": 5.0, "step_s": 60.0} for n in range(20)], "step_s": 60.0}


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch) -> FakeMesh:
    made = FakeMesh()
    monkeypatch.setattr(forecast_verbs, "connect", lambda home: made)
    return made


def test_series_are_listed_by_their_beginning(mesh: FakeMesh, capsys: pytest.CaptureFixture[str]) -> None:
    forecast_verbs.forecast("model/*")
    out = capsys.readouterr().out
    assert mesh.asked == [("", {"prefix": "model/", "limit": 100})]
    assert "model/ctr" in out and "4,321" in out and "12.5/s" in out
    mesh.series = []
    forecast_verbs.forecast("")
    assert "No rate was heard yet" in capsys.readouterr().out


def test_one_value_is_told_as_one(
    mesh: FakeMesh, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TOLD, "history", 1)
    forecast_verbs.forecast("model/ctr", horizon=30)
    assert "from 1 value\n" in capsys.readouterr().out


def test_a_forecast_is_told_with_its_chart_and_past_errors(
    mesh: FakeMesh, capsys: pytest.CaptureFixture[str]
) -> None:
    forecast_verbs.forecast("model/ctr", horizon=30, step="1m", level=0.8, history=20)
    out = capsys.readouterr().out
    assert mesh.asked == [
        ("model/ctr", {"horizon": 30, "step_s": 60.0, "level": 0.8}), ("model/ctr", {"step_s": 60.0, "limit": 20}),
    ]  # fmt: skip
    assert "SeasonalNaive, from 4,321 values" in out and "wrong by 5.1%" in out and "repeats the day before" in out
    assert "▒" in out and "·" in out and "█" not in out.split("|")[0]
    assert "and 6 more steps" in out
    assert out.splitlines()[-1].split() == ["4m", "88", "7.2%", "81%", "80%"]


def test_json_has_all_points(mesh: FakeMesh, capsys: pytest.CaptureFixture[str]) -> None:
    forecast_verbs.forecast("model/ctr", history=20, shape=Shape.JSON)
    told = json.loads(capsys.readouterr().out)
    assert (told["series"], len(told["points"]), len(told["measured"])) == ("model/ctr", 30, 20)


def test_a_step_that_is_no_time_is_named(mesh: FakeMesh) -> None:
    with pytest.raises(InvalidArgument) as caught:
        forecast_verbs.forecast("model/ctr", step="often")
    assert caught.value.violations[0].path == "step"


def test_bars_rise_with_their_values_and_fit_the_width() -> None:
    lines = bars([1.0, 4.0, 8.0], [(4.0, 8.0), (0.0, 0.0)], height=4)
    assert lines == ["       8    █|·", "            █|·", "           ██|▒", "       0  ▄██|▒"]
    assert max(map(len, bars([1.0] * 1000, [(1.0, 2.0)] * 1000, width=60))) <= 60
    assert bars([], []) == [] and bars([0.0], [])[-1] == "       0"


def test_the_level_of_an_interval_has_one_default_wherever_it_is_asked_for() -> None:
    app = FastAPI()
    app.include_router(router(None, None, None, dashboards={}, version=""))    # type: ignore[arg-type]  # no call is made
    asked = app.openapi()["paths"]["/v1/forecasts/{series}"]["get"]["parameters"]
    rest = next(each["schema"] for each in asked if each["name"] == "level")
    defaults = {
        "CLI": inspect.signature(forecast_verbs.forecast).parameters["level"].default,
        "client": inspect.signature(Client.forecast).parameters["level"].default,
        "REST": rest["default"],
        "forecaster": checked_ask(Ask("s", 1, level=0.0)).level,
    }
    assert set(defaults.values()) == {DEFAULT_LEVEL}, defaults
    assert (rest["minimum"], rest["maximum"]) == (MIN_LEVEL, MAX_LEVEL)
