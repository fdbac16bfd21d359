"""When the forecast was wrong: scale on what is measured, at once, and say so.

A schedule is as good as its forecast. When lag, or the use of the workers, leaves its band in spite of it, the next
steps follow the measurement instead: more workers when samples wait too long or workers are full though none were to
be added; fewer when workers idle though none were to be taken away, up to the step in which more is forecast to come.
What the planner wants beyond that is not undone: a schedule that already answers stays as it is.
"""

from dataclasses import dataclass

import numpy as np

from recmesh.plugins.streams import Schedule, StreamView
from services.brain.domain.streams.answer import answered
from services.brain.domain.streams.kale import fewest

RISE = 0.1
"""Share by which demand must be forecast to rise above what it is now, for workers that idle to be there for it."""


@dataclass(frozen=True, slots=True)
class Band:
    """Where lag and use should be."""

    lag_share: float = 0.5
    """Of the lag SLO: above it, the measurement holds."""
    use_low: float = 0.4
    use_high: float = 0.97
    """Of what the running workers can train."""
    use_aim: float = 0.85
    """What a count chosen by measurement is to be used to."""
    holds_s: float = 600.0
    """For how long a measurement stands for the forecast."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Of the time just past."""

    rate: float
    """Samples per second that came."""
    lag_s: float
    """Age of the oldest sample that waits."""


def corrected(stream: StreamView, schedule: Schedule, measured: Measured, band: Band) -> Schedule:
    """The schedule, or its next steps by measurement where lag or use is outside its band."""
    can = float(stream.rates(np.array([float(stream.workers)]))[0])
    use = measured.rate / can if can > 0 else 1.0
    late = measured.lag_s > band.lag_share * stream.lag_slo_s
    full, idle = use > band.use_high, use < band.use_low and stream.backlog <= 0 and not late
    if not (late or full or idle):
        return schedule
    wanted = (measured.rate + stream.backlog / max(stream.drain_s, stream.step_s)) / band.use_aim
    count = int(fewest(stream.rates, np.array([wanted]), least=stream.least, most=stream.most).workers[0])
    if late:
        why = f"lag is {measured.lag_s:.0f} s of {stream.lag_slo_s:.0f}"
    else:
        why = f"workers are used to {use:.0%}"
    why = f"{why} in spite of the forecast: {count} by measurement ({measured.rate:,.0f}/s come)"
    workers, reasons = np.array(schedule.workers, dtype=np.int64), list(schedule.reasons)
    for step in range(min(len(workers), max(1, round(band.holds_s / stream.step_s)))):
        if idle and stream.demand[step] > (1 + RISE) * stream.demand[0]:
            break       # they are there ahead of the time
        better = count < workers[step] if idle else count > workers[step]
        if better:
            workers[step], reasons[step] = count, why
    return answered(stream, workers, reasons, stream.demand)
