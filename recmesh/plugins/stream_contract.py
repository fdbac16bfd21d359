"""What any stream planner must keep, for the tests of those who write one: `check_stream_planner(MyPlanner, streams)`.

It asserts, and says what was broken and for which stream. The same rules hold for brain's own planners.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import fields

import numpy as np

from recmesh.plugins.streams import Schedule, StreamPlanner, StreamView


def check_stream_planner(
    planner: Callable[[], StreamPlanner], streams: Sequence[StreamView], *, seed: int = 0, budget_s: float = 5.0
) -> Sequence[Schedule]:
    """Plans, checks everything, and returns the schedules; then plans again with a planner that was used before.

    `budget_s` is CPU time of the process for all streams together; give it room, as machines differ.
    """
    before = [_series(stream) for stream in streams]
    began = time.process_time()
    schedules = _planned(planner(), streams, seed)
    spent_s = time.process_time() - began
    assert spent_s <= budget_s, f"{len(streams)} streams took {spent_s:.2f} s of CPU, {budget_s:g} s are allowed"
    for stream, series, schedule in zip(streams, before, schedules, strict=True):
        assert _series(stream) == series, f"{stream.job_id}: what it was given was changed"
        check_schedule(stream, schedule)
    used = planner()
    _planned(used, streams, seed + 1)
    assert schedules == _planned(used, streams, seed), (
        "the same views and the same seed gave another schedule: draw from the generator only, keep no state of calls"
    )
    return schedules


def check_schedule(stream: StreamView, schedule: Schedule) -> None:
    """A count within bounds, a reason and a verdict for every step, and servers at the ratio where there is one.

    A planner may want more than `demand` (for a backlog, or what the forecast does not know), or give fewer workers
    than it takes (reactive ones do); but demand that no allowed count trains it must call unmet.
    """
    name, steps = stream.job_id, len(stream.demand)
    sizes = (len(schedule.workers), len(schedule.reasons), len(schedule.unmet))
    assert sizes == (steps,) * 3, f"{name}: {sizes} workers, reasons and verdicts for {steps} steps"
    wrong = [count for count in schedule.workers if not stream.least <= count <= stream.most]
    assert not wrong, f"{name}: {wrong} workers lie outside of {stream.least} to {stream.most}"
    assert all(why.strip() for why in schedule.reasons), f"{name}: a step without words"
    ratio = stream.workers_per_ps
    servers = tuple(math.ceil(count / ratio) for count in schedule.workers) if ratio > 0 else ()
    assert schedule.ps == servers, f"{name}: {schedule.ps} parameter servers; at {ratio:g} workers each, {servers}"
    best = float(np.max(stream.rates(np.arange(stream.least, stream.most + 1, dtype=np.float64))))
    for step, (demand, is_unmet) in enumerate(zip(stream.demand, schedule.unmet, strict=True)):
        assert is_unmet or demand <= best, (
            f"{name}, step {step}: no allowed count trains {demand:g} samples per second, and it does not say so"
        )


def _planned(planner: StreamPlanner, streams: Sequence[StreamView], seed: int) -> list[Schedule]:
    rng = np.random.default_rng(seed)
    return [planner.schedule(stream, rng) for stream in streams]


def _series(stream: StreamView) -> list[bytes]:
    values = (getattr(stream, field.name) for field in fields(stream))
    return [value.tobytes() for value in values if isinstance(value, np.ndarray)]
