"""When the forecast was wrong: scale on what is measured, and say so.

A schedule is as good as its forecast. When lag, or the use of the workers, leaves its band in spite of it, the next
steps go by the measurement instead. How, depends on what a change costs:

- **Where a change stops training for moments**, the schedule is overruled at once: more workers when samples wait too
  long or workers are full though none were to be added; fewer when workers idle though none were to be taken away, up
  to the step in which more is forecast to come. A schedule that already answers stays as it is.
- **Where a stop is long** beside the SLO, each change is itself a reason why samples wait, and a rule that changes
  whenever they do trains next to nothing. There the planner is told what comes in place of what was forecast, and
  decides: it knows the backlog and what a change costs.
"""

from dataclasses import dataclass, replace

import numpy as np

from recmesh.plugins.planning import Floats
from recmesh.plugins.streams import Schedule, StreamPlanner, StreamView
from services.brain.domain.streams.answer import answered
from services.brain.domain.streams.kale import fewest

RISE = 0.1
"""Share by which demand must be forecast to rise above what it is now, for workers that idle to be there for it; and by
which what comes must be above what was forecast to be, for a planner to be told."""


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
    stop_share: float = 0.05
    """Of the lag SLO: a change that stops training for longer is the planner's to decide."""
    holds_stops: float = 3.0
    """There it stands for at least so many stops: what is over before a change has paid is no reason for one."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Of the time just past."""

    rate: float
    """Samples per second that came."""
    lag_s: float
    """Age of the oldest sample that waits."""


def decided(
    planner: StreamPlanner, stream: StreamView, measured: Measured, band: Band, rng: np.random.Generator
) -> Schedule:
    """The planner's schedule, by the measurement where lag or use is outside its band."""
    if not leaves_to_planner(stream, band):
        return corrected(stream, planner.schedule(stream, rng), measured, band)
    out = _wrong(stream, measured, band)
    if out is None:
        return planner.schedule(stream, rng)
    made = planner.schedule(believed(stream, measured, band), rng)
    told = f"{out.why} in spite of the forecast: planned with the {measured.rate:,.0f}/s that come"
    reasons = tuple(f"{told}; {reason}" for reason in made.reasons)
    return replace(made, reasons=reasons)


def leaves_to_planner(stream: StreamView, band: Band) -> bool:
    """Whether a change stops training for so long that no rule of thumb may make one."""
    return stream.restart_s > band.stop_share * stream.lag_slo_s


def is_wrong(stream: StreamView, measured: Measured, band: Band) -> bool:
    """Whether a planner that decides for itself is told what comes: lag or use is outside its band, or more comes than
    was forecast. Without the last it would be told until it has answered, and take its answer back."""
    return _wrong(stream, measured, band) is not None


def believed(stream: StreamView, measured: Measured, band: Band) -> StreamView:
    """The view with what comes now in place of the forecast, for as long as a measurement stands for it.

    Of workers that idle, up to the step in which more is forecast to come. Else no step is taken for less than it was.
    """
    out = _wrong(stream, measured, band)
    if out is None:
        return stream
    holds_s = max(band.holds_s, band.holds_stops * stream.restart_s)
    steps = min(len(stream.demand), max(1, round(holds_s / stream.step_s)))
    if out.idle:
        steps = next((step for step in range(steps) if _rises(stream, step)), steps)
    choose = np.minimum if out.idle else np.maximum

    def seen(values: Floats | None) -> Floats | None:
        if values is None:
            return None
        made = values.copy()
        made[:steps] = choose(made[:steps], measured.rate)
        return made

    demand = seen(stream.demand)
    assert demand is not None
    return replace(stream, demand=demand, expected=seen(stream.expected))


def corrected(stream: StreamView, schedule: Schedule, measured: Measured, band: Band) -> Schedule:
    """The schedule, or its next steps by measurement where lag or use is outside its band."""
    out = _out(stream, measured, band)
    if out is None:
        return schedule
    wanted = (measured.rate + stream.backlog / max(stream.drain_s, stream.step_s)) / band.use_aim
    count = int(fewest(stream.rates, np.array([wanted]), least=stream.least, most=stream.most).workers[0])
    why = f"{out.why} in spite of the forecast: {count} by measurement ({measured.rate:,.0f}/s come)"
    workers, reasons = np.array(schedule.workers, dtype=np.int64), list(schedule.reasons)
    for step in range(min(len(workers), max(1, round(band.holds_s / stream.step_s)))):
        if out.idle and _rises(stream, step):
            break       # they are there ahead of the time
        better = count < workers[step] if out.idle else count > workers[step]
        if better:
            workers[step], reasons[step] = count, why
    return answered(stream, workers, reasons, stream.demand)


@dataclass(frozen=True, slots=True)
class _Out:
    why: str
    idle: bool


def _out(stream: StreamView, measured: Measured, band: Band) -> _Out | None:
    """In what way lag or use is outside its band; None: it is not."""
    can = float(stream.rates(np.array([float(stream.workers)]))[0])
    use = measured.rate / can if can > 0 else 1.0
    if measured.lag_s > band.lag_share * stream.lag_slo_s:
        return _Out(f"lag is {measured.lag_s:.0f} s of {stream.lag_slo_s:.0f}", idle=False)
    idle = use < band.use_low and stream.backlog <= 0
    if use > band.use_high or idle:
        return _Out(f"workers are used to {use:.0%}", idle=idle)
    return None


def _wrong(stream: StreamView, measured: Measured, band: Band) -> _Out | None:
    out = _out(stream, measured, band)
    if out is None and measured.rate > (1 + RISE) * float(stream.demand[0]):
        return _Out(f"{measured.rate:,.0f}/s come", idle=False)
    return out


def _rises(stream: StreamView, step: int) -> bool:
    """Whether more is forecast to come in a step than now."""
    return bool(stream.demand[step] > (1 + RISE) * stream.demand[0])
