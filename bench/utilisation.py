"""Vertical scaling of an over-provisioned and an under-provisioned job, minute by minute, by brain's own rules.

The first is Primus's: 400 data executors of 10 cores that use half of them. The second is parameter servers whose rows
outgrow their memory; rows grow as a power of the samples, which is not the curve that the forecast fits.
"""

import math
from dataclasses import dataclass

import numpy as np

from bench.figures import Result
from services.brain.domain.executors import oom, vertical

GIB = 1 << 30
EXECUTORS, CORES, USED_CORES = 400, 10.0, 5.0
SERVERS, HELD_BYTES, END_BYTES = 16, 16.0 * GIB, 20.0 * GIB
STATIC_BYTES = 1.0 * GIB
GROWTH_POWER = 0.7
MINUTES, QUICK_MINUTES = 1440, 480
EVERY_MIN, EFFECT_MIN = 10, 5
"""A decision, and the time until its size is there."""
RATE = 50_000.0
NOISE_SD = 0.05
SEED = 1
TABLE = oom.Table(dim=16, state_values=16)


@dataclass(slots=True)
class _Course:
    used: list[float]
    held: list[float]
    short: int = 0
    """Minutes in which more was wanted than held."""
    changes: int = 0

    def share(self, minutes: slice) -> float:
        return float(np.sum(self.used[minutes]) / np.sum(self.held[minutes]))


def run(*, quick: bool) -> Result:
    """`cpu_before`, `cpu_after`: cores used / held in the first and last hour (paper .50 → .83).

    `ooms_without`, `ooms_with`: servers killed for memory; `memory_after`: of the second job in its last hour.
    """
    minutes = QUICK_MINUTES if quick else MINUTES
    executors = _executors(minutes)
    without, with_ = _servers(minutes, scaled=False), _servers(minutes, scaled=True)
    hour, last = slice(0, 60), slice(minutes - 60, minutes)
    figures = {
        "cpu_before": USED_CORES / CORES,
        "cpu_first_hour": executors.share(hour),
        "cpu_after": executors.share(last),
        "cores_saved": EXECUTORS * (CORES - executors.held[-1]),
        "cpu_short_share": executors.short / minutes,
        "cpu_changes": float(executors.changes),
        "ooms_without": float(without.short),
        "ooms_with": float(with_.short),
        "memory_before": with_.used[60] / HELD_BYTES,
        "memory_after": with_.share(last),
        "memory_changes": float(with_.changes),
    }
    return Result("utilisation", figures, {
        "minutes": minutes, "executors": f"{EXECUTORS} of {CORES:g} cores", "decision_every_min": EVERY_MIN,
        "servers": f"{SERVERS} of {HELD_BYTES / GIB:g} GiB that need {END_BYTES / GIB:g} at the end",
        "growth": f"rows ~ samples^{GROWTH_POWER:g}", "noise_sd": NOISE_SD,
        "inputs": "synthetic: sizes of Primus's examples, with noise and a cycle of a day",
    })  # fmt: skip


def _executors(minutes: int) -> _Course:
    """All alike; the busiest is watched."""
    rng = np.random.default_rng(SEED)
    course = _Course([], [])
    held, coming = CORES, (math.inf, CORES)
    wanted: list[float] = []
    for minute in range(minutes):
        held, coming = _arrived(held, coming, minute)
        cycle = 1.0 + 0.05 * math.sin(2 * math.pi * minute / 1440)
        wanted.append(USED_CORES * cycle * math.exp(rng.normal(0.0, NOISE_SD)))
        course.short += wanted[-1] > held
        course.used.append(min(wanted[-1], held))
        course.held.append(held)
        if minute and minute % EVERY_MIN == 0 and math.isinf(coming[0]):
            use = vertical.Use(held, tuple(course.used[-vertical.CPU.window - 1 :]))
            found = vertical.cpu(use, vertical.Limits(0.5, 16.0))
            if found.size != held:
                coming = (minute + EFFECT_MIN, found.size)
                course.changes += 1
    return course


def _servers(minutes: int, *, scaled: bool) -> _Course:
    """One of equal servers. Killed for memory, it comes back with what it had, and is killed again: counted once."""
    course = _Course([], [])
    held, coming = HELD_BYTES, (math.inf, HELD_BYTES)
    total = 60.0 * RATE * minutes
    scale = (END_BYTES - STATIC_BYTES) / TABLE.row_bytes / total**GROWTH_POWER
    profiles: list[oom.Rows] = []
    for minute in range(1, minutes + 1):
        held, coming = _arrived(held, coming, minute)
        samples = 60.0 * RATE * minute
        rows = round(scale * samples**GROWTH_POWER)
        needed = STATIC_BYTES + rows * TABLE.row_bytes
        profiles.append(oom.Rows(round(samples), rows))
        course.used.append(min(needed, held))
        course.held.append(held)
        if needed > held:
            course.short += SERVERS
            course.used += [0.0] * (minutes - minute)
            course.held += [held] * (minutes - minute)
            return course
        if scaled and minute % EVERY_MIN == 0 and math.isinf(coming[0]):
            found = _sized(held, course.used, profiles, total)
            if found != held:
                coming = (minute + EFFECT_MIN, found)
                course.changes += 1
    return course


def _sized(held: float, used: list[float], profiles: list[oom.Rows], total: float) -> float:
    """What brain would give one server now: equation 3, and never less than the forecast wants."""
    server = oom.Server("ps-0", STATIC_BYTES, held, (oom.Growth(TABLE, tuple(profiles[-60:])),))
    progress = oom.Progress(profiles[-1].samples, total, RATE)
    foreseen = oom.size_for_all(oom.needs([server], progress))
    use = vertical.Use(held, tuple(used[-vertical.MEMORY.window - 1 :]))
    return vertical.memory(use, vertical.Limits(1.0 * GIB, 64.0 * GIB), foreseen=foreseen).size


def _arrived(held: float, coming: tuple[float, float], minute: int) -> tuple[float, tuple[float, float]]:
    at, size = coming
    return (size, (math.inf, size)) if minute >= at else (held, coming)
