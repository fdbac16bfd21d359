"""Moments as data tell them."""

import math
from datetime import UTC, datetime
from typing import Any

_UNITS = ((1e11, 1.0), (1e14, 1e-3), (1e17, 1e-6), (float("inf"), 1e-9))


def unit_of(most: float) -> float:
    """Seconds in a unit, by the largest number: below 1e11 they are seconds, then milliseconds, microseconds,
    nanoseconds. In each of them that is after 1973, and in the one before it would be after 5138."""
    return next(seconds for limit, seconds in _UNITS if abs(most) < limit)


def unix_seconds(value: Any) -> float:
    """Of a number in any of these units, or of ISO 8601 text (UTC where it says nothing else). ValueError: neither."""
    if isinstance(value, str):
        at = datetime.fromisoformat(value)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no time")
    return value * unit_of(value)
