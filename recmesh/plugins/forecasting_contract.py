"""What any forecast model must keep, for the tests of those who write one: `check_forecaster(MyModel, series)`.

It asserts, and says what was broken and for which series. The same rules hold for forecaster's own models.
"""

import pickle
import time
from collections.abc import Callable, Sequence

import numpy as np

from recmesh.plugins.forecasting import Fitted, Floats, Forecaster, Ints, SeriesView, Unfit

ROUNDING = 1e-6
"""Relative: a batch of origins may add up in another order than one."""


def check_forecaster(
    forecaster: Callable[[], Forecaster], series: Sequence[SeriesView], *, seed: int = 0, budget_s: float = 5.0
) -> Sequence[Floats | None]:
    """Fits, checks everything, and returns what was predicted from the end of each history; None where it is Unfit.

    `budget_s` is CPU time of the process for all series together; give it room, as machines differ.
    """
    model = forecaster()
    assert str(model.name).strip(), "a model needs a name"
    before = [(view.values.tobytes(), view.weights.tobytes()) for view in series]
    began = time.process_time()
    fitted = [_fitted(model, view, seed) for view in series]
    said = [None if made is None else _from_the_end(made, view) for made, view in zip(fitted, series, strict=True)]
    spent_s = time.process_time() - began
    assert spent_s <= budget_s, f"{len(series)} series took {spent_s:.2f} s of CPU, {budget_s:g} s are allowed"
    for at, (view, made, told) in enumerate(zip(series, fitted, said, strict=True)):
        which = f"{model.name}, series {at}"
        if made is not None and told is not None:
            check_fitted(made, view, which=which)
            again = _fitted(model, view, seed)
            assert again is not None and np.array_equal(told, _from_the_end(again, view)), (
                f"{which}: the same history and the same seed gave another forecast: draw from the generator only"
            )
        assert (view.values.tobytes(), view.weights.tobytes()) == before[at], f"{which}: what it was given was changed"
    return said


def check_fitted(fitted: Fitted, view: SeriesView, *, which: str = "the model") -> None:
    """Shape, finite values, no look at what comes after an origin, the same for one origin as for many, by pickle too;
    leads between those that it was fitted for; values that came after it was fitted."""
    count = len(view.values)
    origins = np.unique(np.linspace(max(1, count // 2), count, 5).astype(np.int64))
    leads = np.unique(np.array([*view.leads, (view.leads[0] + view.leads[-1]) // 2], dtype=np.int64))
    made = _rolled(fitted, view.values, origins, leads, which)
    scale = float(np.abs(view.values).max()) + 1.0
    changed = view.values.copy()
    for row, origin in enumerate(origins.tolist()):
        changed[:origin], changed[origin:] = view.values[:origin], scale * 7
        for shown, wrong in (
            (view.values, "one origin alone gives another forecast than among others"),
            (changed, "it looks at values after the origin"),
            (view.values[:origin], "it needs values after the origin"),
        ):
            alone = _rolled(fitted, shown, origins[row : row + 1], leads, which)[0]
            assert np.allclose(alone, made[row], rtol=ROUNDING, atol=ROUNDING * scale), f"{which}, {origin}: {wrong}"
    copied = _rolled(pickle.loads(pickle.dumps(fitted)), view.values, origins, leads, which)
    assert np.allclose(copied, made, rtol=ROUNDING, atol=ROUNDING * scale), f"{which}: pickled, it says something else"
    longer = np.concatenate([view.values, view.values[-min(count, 10) :]])
    _rolled(fitted, longer, np.array([len(longer)]), leads, which)


def _fitted(model: Forecaster, view: SeriesView, seed: int) -> Fitted | None:
    try:
        return model.fit(view, np.random.default_rng(seed))
    except Unfit as error:
        assert str(error).strip(), f"{model.name}: Unfit without words"
        return None


def _from_the_end(fitted: Fitted, view: SeriesView) -> Floats:
    return fitted.rolling(view.values, np.array([len(view.values)]), np.array(view.leads, dtype=np.int64))


def _rolled(fitted: Fitted, values: Floats, origins: Ints, leads: Ints, which: str) -> Floats:
    made = fitted.rolling(values, origins, leads)
    wanted = (len(origins), len(leads))
    assert made.shape == wanted, f"{which}: predictions of shape {made.shape}; {wanted} are wanted"
    assert np.isfinite(made).all(), f"{which}: predictions that are not finite"
    return made
