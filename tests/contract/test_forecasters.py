"""What every forecast model must keep, whoever wrote it."""

import importlib
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from examples.forecaster_plugin.src.same_weekday import SameWeekday
from recmesh.plugins.forecasting import GROUP, Fitted, Floats, Forecaster, Ints, SeriesView, Unfit
from recmesh.plugins.forecasting_contract import check_forecaster
from services.forecaster.runtimes.fed import Fed
from services.forecaster.runtimes.models import BUILT_IN

QUICK_FED: Callable[[], Forecaster] = lambda: Fed(steps=3)  # noqa: E731  # a factory like the classes beside it
KNOWN: dict[str, Callable[[], Forecaster]] = {**BUILT_IN, "same-weekday": SameWeekday, "fed": QUICK_FED}
forecasters = pytest.mark.parametrize("name", sorted(KNOWN))


def view(
    count: int, seasons: tuple[int, ...] = (), *, leads: tuple[int, ...] = (1, 2, 4, 6, 12), zeros: float = 0.0
) -> SeriesView:
    rng = np.random.default_rng(count)
    place = np.arange(count)
    values = 100 + 40 * np.sin(2 * np.pi * place / 24) + 10 * (place // 24 % 7 >= 5) + rng.normal(0, 3, count)
    values = np.where(rng.uniform(size=count) < zeros, 0.0, np.maximum(values, 0.0))
    return SeriesView(values, 3600.0, seasons, leads, np.where(rng.uniform(size=count) < 0.02, 0.0, 1.0))


@forecasters
def test_a_model_keeps_its_contract(name: str) -> None:
    views = [view(1200, (24, 168)), view(60, (24,)), view(30), view(1), view(300, (24,), zeros=0.6)]
    check_forecaster(KNOWN[name], views, budget_s=120.0)


@forecasters
def test_its_name_is_the_one_it_is_found_by(name: str) -> None:
    assert KNOWN[name]().name == name


def test_the_entry_points_are_the_table() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    entries: dict[str, str] = project["entry-points"][GROUP]
    assert set(entries) == set(BUILT_IN)
    for name, where in entries.items():
        module, attribute = where.split(":")
        made: Forecaster = getattr(importlib.import_module(module), attribute)()
        assert made == BUILT_IN[name]()


class _Broken:
    """Holds what there is; a test breaks one rule of it."""

    name = "broken"
    dear = False

    def fit(self, view: SeriesView, rng: np.random.Generator) -> Fitted:
        return _Last(float(rng.uniform()))


class _Last:
    def __init__(self, drawn: float) -> None:
        self.drawn = drawn

    def rolling(self, values: Floats, origins: Ints, leads: Ints) -> Floats:
        return np.repeat(values[origins - 1][:, None], len(leads), axis=1)


class _Peeks(_Last):
    def rolling(self, values: Floats, origins: Ints, leads: Ints) -> Floats:
        index = origins[:, None] + leads[None, :] - 1
        return np.asarray(values[np.minimum(index, len(values) - 1)])


class _Shapeless(_Last):
    def rolling(self, values: Floats, origins: Ints, leads: Ints) -> Floats:
        return np.asarray(values[origins - 1])


class _Endless(_Last):
    def rolling(self, values: Floats, origins: Ints, leads: Ints) -> Floats:
        return np.full((len(origins), len(leads)), np.inf)


class _Mixes(_Last):
    def rolling(self, values: Floats, origins: Ints, leads: Ints) -> Floats:
        return np.full((len(origins), len(leads)), values[origins - 1].mean())


class _Forgets(_Last):
    def __reduce__(self) -> "tuple[type[_Last], tuple[float]]":
        return _Double, (0.0,)


class _Double(_Last):
    def rolling(self, values: Floats, origins: Ints, leads: Ints) -> Floats:
        return super().rolling(values, origins, leads) * 2


class _Scribbles(_Last):
    def rolling(self, values: Floats, origins: Ints, leads: Ints) -> Floats:
        values[:1] += 1
        return np.ones((len(origins), len(leads)))


_COUNT = iter(range(1_000_000))


class _Whimsical(_Last):
    def __init__(self, drawn: float) -> None:
        self.drawn = float(next(_COUNT))

    def rolling(self, values: Floats, origins: Ints, leads: Ints) -> Floats:
        return np.full((len(origins), len(leads)), self.drawn)

    def __reduce__(self) -> "tuple[object, tuple[float]]":
        return _whim, (self.drawn,)


def _whim(drawn: float) -> _Whimsical:
    made = _Whimsical(0.0)
    made.drawn = drawn
    return made


class _Speechless(_Broken):
    def fit(self, view: SeriesView, rng: np.random.Generator) -> Fitted:
        raise Unfit("")


@pytest.mark.parametrize(
    ("made", "word"),
    [
        (_Peeks, "after the origin"), (_Shapeless, "shape"), (_Endless, "not finite"), (_Mixes, "among others"),
        (_Forgets, "pickled"), (_Scribbles, "was changed"), (_Whimsical, "another forecast"),
    ],
)  # fmt: skip
def test_what_breaks_a_rule_is_told_which(made: type[_Last], word: str) -> None:
    class Model(_Broken):
        def fit(self, view: SeriesView, rng: np.random.Generator) -> Fitted:
            return made(0.0)

    with pytest.raises(AssertionError, match=word):
        check_forecaster(Model, [view(60)])


def test_unfit_needs_words_and_a_model_a_name() -> None:
    with pytest.raises(AssertionError, match="without words"):
        check_forecaster(_Speechless, [view(60)])
    nameless = type("Nameless", (_Broken,), {"name": ""})
    with pytest.raises(AssertionError, match="name"):
        check_forecaster(nameless, [view(60)])


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"values": np.array([-1.0, 2.0])}, "values"), ({"values": np.zeros(0)}, "values"),
        ({"weights": np.ones(3)}, "weights"), ({"weights": np.full(2, 2.0)}, "weights"),
        ({"step_s": 0.0}, "step_s"), ({"seasons": (2,)}, "seasons"), ({"leads": ()}, "leads"),
        ({"leads": (2, 1)}, "leads"),
    ],
)  # fmt: skip
def test_a_view_that_no_series_has_is_refused(change: dict[str, object], word: str) -> None:
    fields: dict[str, object] = {
        "values": np.ones(2), "step_s": 60.0, "seasons": (), "leads": (1,), "weights": np.ones(2)
    }  # fmt: skip
    with pytest.raises(ValueError, match=word):
        SeriesView(**(fields | change))  # type: ignore[arg-type]  # wrong on purpose
