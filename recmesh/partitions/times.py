"""Moments as data tell them."""

import math
from datetime import UTC, datetime
from typing import Any

from recmesh.spec.quantity import LAST_MOMENT

_UNITS = ((1e11, 1.0), (1e14, 1e-3), (1e17, 1e-6), (float("inf"), 1e-9))


def unit_of(most: float) -> float:
    """Seconds in a unit, by the largest number: below 1e11 they are seconds, then milliseconds, microseconds,
    nanoseconds. In each of them that is after 1973, and in the one before it would be after 5138."""
    return next(seconds for limit, seconds in _UNITS if abs(most) < limit)


def told_moment(text: str | None) -> float | None:
    """Of the header `EVENT_TIME`; None where it is not there, or is no moment in unix seconds."""
    try:
        time = float(text) if text else math.nan
    except ValueError:
        return None
    return time if 0.0 <= time <= LAST_MOMENT else None         # nor NaN: it would be before and after nothing


def unix_seconds(value: Any) -> float:
    """Of a number in any of these units, or of ISO 8601 text (UTC where it says nothing else). ValueError: neither."""
    if isinstance(value, str):
        at = datetime.fromisoformat(value)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no time")
    return value * unit_of(value)
