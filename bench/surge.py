"""A burst of five times the load that no forecast knows: how long until lag is under a minute again, simulated."""

from dataclasses import replace
from typing import Any

import numpy as np

from bench.autoscale import DAYS, JUDGED, STEP_S, data, settings
from bench.figures import Result
from recmesh.plugins.streams import StreamPlanner
from services.brain.domain.streams.fallback import Band
from services.brain.domain.streams.horizon import Horizon
from services.brain.domain.streams.kale import Kale, literal
from services.brain.simulator.online.comparison import Case, burst, judged, loaded
from services.brain.simulator.online.engine import MINUTE_S, Setting
from services.brain.simulator.online.series import series_named
from services.brain.simulator.online.truths import T4

SERIES = "server"
TIMES = 5.0
MINUTES = 20
SEED = 1
BURSTS, QUICK_BURSTS = 20, 5
LONGEST = 1440
"""Minutes after which a burst counts as never recovered from."""
MOST = 80
"""Five times the load on the rise needs more than the 40 of `autoscale`."""
PLANNERS: dict[str, StreamPlanner] = {"kale_literal": literal(), "kale": Kale(), "horizon": Horizon()}


def run(*, quick: bool) -> Result:
    """Medians over bursts at times drawn by seed; minutes from a burst's end until lag stays under a minute for ten.

    Forecasts know nothing of a burst, neither beforehand nor while it lasts; planners see the backlog. `*_live`: with
    the restart cost measured here. `*_without`: no fallback. A burst that is not over after a day counts a day.
    """
    arriving = loaded(series_named(SERIES, data(), days=DAYS), T4)
    case = judged(SERIES, arriving, step_s=STEP_S, share=JUDGED)
    rng = np.random.default_rng(SEED)
    begins = rng.integers(case.first + 360, case.last - LONGEST - 60, QUICK_BURSTS if quick else BURSTS)
    found: dict[str, float] = {}
    for label, setting in settings().items():
        for name, planner in PLANNERS.items():
            for suffix, band in (("with_fallback", Band()), ("without", None)):
                room = replace(setting, most=MOST, fallback=band)
                times = [_recovered(case, int(begin) // 5 * 5, planner, room) for begin in begins]
                found[f"{name}_recovery_min_{suffix}_{label}"] = float(np.median(times))
    context: dict[str, Any] = {
        "series": SERIES, "times": TIMES, "burst_min": MINUTES, "bursts": len(begins), "seed": SEED, "most": MOST,
        "theta": repr(T4), "horizon": "its defaults", "kale": "τ 10 min",
        "band": repr(Band()), "longest_min": LONGEST,
    }  # fmt: skip
    return Result("surge", found, context)


def _recovered(case: Case, begin: int, planner: StreamPlanner, setting: Setting) -> float:
    """Minutes from the end of a burst to the first of ten minutes in which lag is under a minute."""
    hit = replace(burst(case, at=begin, minutes=MINUTES, times=TIMES), first=begin - 60, last=begin + MINUTES + LONGEST)
    lag_s = hit.under(planner, setting).lag_s[60 + MINUTES :]
    fresh = np.convolve(lag_s < MINUTE_S, np.ones(10), mode="valid") == 10
    return float(np.argmax(fresh)) if fresh.any() else float(LONGEST)
