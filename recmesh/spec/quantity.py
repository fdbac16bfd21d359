"""Quantities as people write them: cpu `500m` or `2`, memory `512Mi` or `2G`, durations `90s`, `15m`, `1h` or `1d`, and
moments in UTC."""

import math
import re
from datetime import UTC, date, datetime
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

MIB = 1 << 20
LEAST_MEMORY_BYTES = 64 * MIB
"""With less not even the interpreter and what every role imports would fit."""
MOST_BYTES = 1 << 62

_MEMORY = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_QUANTITY = re.compile(r"^(\d+(?:\.\d+)?)([A-Za-z]*)$")
LAST_MOMENT = 253402300799
STARTS = ("earliest", "latest", "group")
"""Where a topic may be begun, besides moments."""


def cpu_cores(value: Any) -> Any:
    """Cores as a float; ValueError says what is accepted."""
    if not isinstance(value, str):
        return value
    match = _QUANTITY.match(value)
    if match is None or match[2] not in ("", "m"):
        raise ValueError(f"{value!r} is no amount of cpu; write cores (1.5) or millicores (500m)")
    return float(match[1]) / (1000 if match[2] else 1)


def memory_bytes(value: Any) -> Any:
    """Bytes as an int; ValueError says what is accepted."""
    if not isinstance(value, str):
        return value
    match = _QUANTITY.match(value)
    if match is None or match[2] not in _MEMORY:
        raise ValueError(f"{value!r} is no amount of memory; write bytes or a suffix such as Mi, Gi, M, G")
    amount = float(match[1]) * _MEMORY[match[2]]
    if not math.isfinite(amount):
        raise ValueError("is more memory than there is")
    return int(amount)


def seconds(value: Any) -> Any:
    """Seconds as a float; ValueError says what is accepted."""
    if not isinstance(value, str):
        return value
    match = _QUANTITY.match(value)
    if match is None or match[2] not in _SECONDS:
        raise ValueError(f"{value!r} is no duration; write 90s, 15m, 1h or 1d")
    return float(match[1]) * _SECONDS[match[2]]


def moment(value: Any) -> Any:
    """Seconds since 1970 of a date, a time, or an ISO 8601 text, in UTC where none says otherwise."""
    try:
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        elif isinstance(value, date) and not isinstance(value, datetime):
            value = datetime(value.year, value.month, value.day, tzinfo=UTC)
        if isinstance(value, datetime):
            return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    except ValueError:
        raise ValueError(f"{value!r} is no moment; write 2026-11-22 or 2026-11-22T13:00") from None
    return value


def start(value: Any) -> Any:
    """A moment, or one of STARTS."""
    if value in STARTS:
        return value
    if isinstance(value, str) and value.isalpha():
        raise ValueError(f"{value!r} is no moment, nor {', '.join(STARTS)}")
    value = moment(value)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= LAST_MOMENT:
        raise ValueError(f"{value!r} is no moment; write 2026-11-22 or 2026-11-22T13:00")
    return float(value)


def memory_fault(memory_bytes: int) -> str:
    """Why no process can run with so much; empty when one can."""
    if memory_bytes >= LEAST_MEMORY_BYTES:
        return ""
    return f"is less than the {LEAST_MEMORY_BYTES // MIB} MiB that a process needs"


CPU = Annotated[float, BeforeValidator(cpu_cores), Field(gt=0)]
Memory = Annotated[int, BeforeValidator(memory_bytes), Field(gt=0, lt=MOST_BYTES)]
Duration = Annotated[float, BeforeValidator(seconds), Field(ge=0, le=366 * 86400)]
"""Seconds."""
Moment = Annotated[float, BeforeValidator(moment), Field(ge=0, le=LAST_MOMENT)]
"""Unix seconds."""
Start = Annotated[float | str, BeforeValidator(start)]
"""Unix seconds, or one of STARTS."""
