"""What the pool's processes run: all models by name, and what was fitted for each series, for as long as it holds."""

import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.reduction import ForkingPickler
from types import MappingProxyType
from typing import Any

import numpy as np

from recmesh.plugins.forecasting import GROUP, Fitted, Forecaster, SeriesView
from recmesh.plugins.registry import UnknownPlugin, load, names
from services.forecaster.domain.budget import LEAST_GAIN
from services.forecaster.domain.drift import Drift
from services.forecaster.domain.fitting import Asked, Kept, Refined, advance, drift_of, fit, is_stale, speak
from services.forecaster.domain.forecast import Predicted
from services.forecaster.domain.forecasters.intermittent import CrostonSba, Tsb
from services.forecaster.domain.forecasters.lagged import Lagged, autoregressive, lagged_week
from services.forecaster.domain.forecasters.naive import DayNaive, LongMean, Persistence, RecentMean, WeekNaive
from services.forecaster.domain.history import History
from services.forecaster.runtimes.fed import Fed
from services.forecaster.runtimes.statistical import AutoEts, Mstl, Theta

BUILT_IN: Mapping[str, Callable[[], Forecaster]] = MappingProxyType(
    {
        "persistence": Persistence,
        "recent-mean": RecentMean,
        "mean": LongMean,
        "day-naive": DayNaive,
        "week-naive": WeekNaive,
        "autoregressive": autoregressive,
        "lagged": Lagged,
        "lagged-week": lagged_week,
        "croston-sba": CrostonSba,
        "tsb": Tsb,
        "auto-ets": AutoEts,
        "theta": Theta,
        "mstl": Mstl,
        "fed": Fed,
    }
)
"""Those that come with recmesh, by name; pyproject.toml lists the same as entry points."""
KEPT_SERIES = 4_000
"""Series whose models are kept, about 50 kB each; the one that was asked for longest ago goes first."""
_NEEDS = {"fed": "torch"}
"""Packages that an installation may be without; then the model is left out, unless it is asked for by name."""
_SAFE = "persistence"
"""Always tried: it needs one value."""
_BY_STATSFORECAST = frozenset({"auto-ets", "theta", "mstl"})
_kept: OrderedDict[str, Kept] = OrderedDict()
_arrived: dict[str, Kept] = {}
"""What waits to be adopted; another thread puts it here."""


@lru_cache(maxsize=8)
def forecasters(wanted: tuple[str, ...], *, dear: bool) -> Sequence[Forecaster]:
    """The models named, or all that are installed; without `dear`, the cheap ones. Always with `persistence`.

    UnknownPlugin: none of that name is installed. One that cannot be imported or made is told of in notes.
    """
    installed = [name for name in names(GROUP, BUILT_IN) if name not in _NEEDS or find_spec(_NEEDS[name])]
    chosen = list(dict.fromkeys([_SAFE, *(wanted or installed)]))
    made = [_made(name) for name in chosen]
    return tuple(each for each in made if dear or not each.dear)


class _Broken:
    """Stands for a model that is installed and cannot be made: others answer, and say why it does not."""

    dear = False

    def __init__(self, name: str, error: Exception) -> None:
        self.name, self._error = name, error

    def fit(self, view: SeriesView, rng: np.random.Generator) -> Fitted:
        raise self._error


def _made(name: str) -> Forecaster:
    try:
        found: Any = load(GROUP, name, BUILT_IN)()
        if not (isinstance(found.name, str) and isinstance(found.dear, bool)):
            raise TypeError("its name must be a text, and dear a truth value")
    except UnknownPlugin:
        raise
    except Exception as error:      # somebody else's package
        return _Broken(name, error)
    made: Forecaster = found
    return made


def warm(wanted: tuple[str, ...] = ()) -> None:
    """Import what the first forecast needs, and find out whether all models named exist."""
    history = History(np.arange(48.0) % 7, 0, 3600.0)
    fit(history, horizon=2, forecasters=forecasters(wanted, dear=False), rng=np.random.default_rng(0))


def predict(asked: Asked, wanted: tuple[str, ...] = ()) -> Predicted:
    """The next values, by the models that are kept for the series, or by new ones where those are stale or wrong."""
    before = _kept.pop(asked.key, None)
    kept = _arrived.pop(asked.key, before)
    models = forecasters(wanted, dear=False)
    if kept is None or is_stale(kept, asked.history, horizon=asked.horizon):
        kept = fit(asked.history, horizon=asked.horizon, forecasters=models, rng=_rng(asked.key))
    kept = advance(kept, asked.history)
    drift = drift_of(kept, asked.history)
    if drift is not Drift.NONE:
        kept = fit(asked.history, horizon=asked.horizon, forecasters=models, rng=_rng(asked.key), drift=drift)
        kept = advance(kept, asked.history)
    told = speak(kept, asked.history, horizon=asked.horizon, level=asked.level)
    if told.broken:     # it answers no more until all are chosen anew; the others' weights and intervals are made again
        sound = [each for each in models if each.name not in told.broken]
        failed = {**dict.fromkeys(told.broken, "it broke after it was chosen"), **kept.failed}
        kept = fit(asked.history, horizon=asked.horizon, forecasters=sound, rng=_rng(asked.key))
        kept = advance(replace(kept, failed={**failed, **kept.failed}), asked.history)
        told = speak(kept, asked.history, horizon=asked.horizon, level=asked.level)
    adopt(asked.key, kept)
    return told


def refine(asked: Asked, wanted: tuple[str, ...] = (), *, seconds: float = 60.0) -> Refined:
    """Try the dear models beside the cheap ones; `seconds` is what one of them may take to learn."""
    began = time.process_time()
    every = forecasters(wanted, dear=True)
    kept = fit(asked.history, horizon=asked.horizon, forecasters=every, rng=_rng(asked.key), seconds=seconds)
    gain = 1 - kept.loss / kept.cheap_loss if kept.cheap_loss > 0 else 0.0
    chosen = any(each.dear for each in every if each.name in kept.choice.names)
    return Refined(gain, time.process_time() - began, kept if chosen and gain >= LEAST_GAIN else None)


def refine_packed(asked: Asked, wanted: tuple[str, ...] = ()) -> tuple[Refined, bytes]:
    """As `refine`, with what is to be adopted as bytes for `adopt_packed`; none: nothing is.

    They go from one model process to another as they are: the service between them need not import what the models
    were made with. They are pickled as all that goes through these processes' own pipes, and go nowhere else.
    """
    refined = refine(asked, wanted)
    packed = b"" if refined.kept is None else bytes(ForkingPickler.dumps(refined.kept))
    return replace(refined, kept=None), packed


def adopt_packed(key: str, packed: bytes) -> threading.Thread:
    """Adopt what `refine_packed` made, once all is imported that it needs: forecasts go on meanwhile."""

    def unpack() -> None:
        kept: Kept = ForkingPickler.loads(packed)
        if any(name in _BY_STATSFORECAST for name in kept.models):
            import_module("statsforecast.models")
        _arrived[key] = kept
        while len(_arrived) > KEPT_SERIES:
            _arrived.pop(next(iter(_arrived)), None)

    thread = threading.Thread(target=unpack, name="adopt", daemon=True)
    thread.start()
    return thread


def adopt(key: str, kept: Kept) -> None:
    """Answer by these from now on."""
    _kept[key] = kept
    _kept.move_to_end(key)
    while len(_kept) > KEPT_SERIES:
        _kept.popitem(last=False)


def _rng(key: str) -> np.random.Generator:
    """The same for a series in every process."""
    return np.random.default_rng(zlib.crc32(key.encode()))
