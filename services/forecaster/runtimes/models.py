"""Forecast models. They run in the pool's process; statsforecast takes seconds to import, so only there."""

from typing import Any

import numpy as np

from services.forecaster.domain.forecast import Predicted, backtest_origins, wape
from services.forecaster.domain.series import Floats


def warm() -> None:
    """Import and compile what the first forecast needs."""
    predict(np.arange(8.0), horizon=2, season=2, level=0.8)


def predict(values: Floats, *, horizon: int, season: int, level: float) -> tuple[Predicted, float]:
    """The next `horizon` values, and the WAPE of the same model over the last season.

    `season` is in steps; with 1, the last value or the mean is carried forward, whichever was nearer in
    the rolling-origin test. At least one value is needed.
    """
    candidates = ["SeasonalNaive"] if season > 1 else ["Naive", "HistoricAverage"]
    errors = {name: _backtest(name, values, season=season, horizon=horizon) for name in candidates}
    best = min(candidates, key=lambda name: errors[name])
    return _forecast(best, values, horizon=horizon, season=season, level=level), errors[best]


def _model(name: str, season: int) -> Any:
    from statsforecast import models

    return models.SeasonalNaive(season_length=season) if name == "SeasonalNaive" else getattr(models, name)()


def _forecast(name: str, values: Floats, *, horizon: int, season: int, level: float) -> Predicted:
    percent = round(level * 100, 3)
    if len(values) < 2:
        flat = np.full(horizon, float(values[-1]))
        return Predicted(name, flat, flat, flat)
    told = _model(name, season).forecast(y=np.ascontiguousarray(values, dtype=np.float64), h=horizon, level=[percent])
    mean = np.asarray(told["mean"], dtype=np.float64)
    sides = {key.partition("-")[0]: np.asarray(told[key], dtype=np.float64) for key in told if key != "mean"}
    low, high = (np.where(np.isfinite(sides[side]), sides[side], mean) for side in ("lo", "hi"))
    return Predicted(name, mean, low, high)


def _backtest(name: str, values: Floats, *, season: int, horizon: int) -> float:
    actual, predicted = [], []
    for cut in backtest_origins(len(values), season=season, horizon=horizon):
        truth = values[cut : cut + horizon]
        model = _model(name, season)
        told = model.forecast(y=np.ascontiguousarray(values[:cut], dtype=np.float64), h=len(truth))
        actual.append(truth)
        predicted.append(np.asarray(told["mean"], dtype=np.float64))
    if not actual:
        return 1.0
    return wape(np.concatenate(actual), np.concatenate(predicted))
