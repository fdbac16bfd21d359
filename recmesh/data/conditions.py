"""Conditions on rows: which rows of a table hold them, and which row groups cannot have such rows at all."""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from recmesh.data.faults import wrong
from recmesh.spec.dataset import Condition, Scalar

_COMPARED = {
    "=": pc.equal, "!=": pc.not_equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}


def holding(table: Any, conditions: Sequence[Condition], *, where: str) -> Any:
    """Rows for which all conditions hold, as an Arrow boolean array without nulls; a missing value holds none of them.

    InvalidArgument: a column cannot be compared with its value. `where` the rows came from.
    """
    found = None
    for index, condition in enumerate(conditions):
        try:
            column = table.column(condition.column)
            if condition.op == "in":            # as `=` with each of them: a cast to the column's type may round
                kept = reduce(pc.or_, (pc.equal(column, pa.scalar(value)) for value in condition.values))
            else:
                kept = _COMPARED[condition.op](column, pa.scalar(condition.value))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            reason = f"column {condition.column!r} of {where} cannot be compared: {str(error).splitlines()[0]}"
            raise wrong(f"data.where.{index}", reason) from None
        kept = pc.fill_null(kept, False)
        found = kept if found is None else pc.and_(found, kept)
    return found


def may_hold(condition: Condition, least: Scalar, most: Scalar) -> bool:
    """Whether a value between these, ends included, can hold the condition; when in doubt, it may."""
    values = condition.values if condition.op == "in" else [condition.value]
    try:
        match condition.op:
            case "=" | "in":
                return any(least <= value <= most for value in values)      # type: ignore[operator]  # of one kind, or TypeError
            case "!=":                          # statistics are without NaN, which differs from every number
                return isinstance(least, float) or not least == most == condition.value
            case "<":
                return bool(least < condition.value)                        # type: ignore[operator]  # as above
            case "<=":
                return bool(least <= condition.value)                       # type: ignore[operator]  # as above
            case ">":
                return bool(most > condition.value)                         # type: ignore[operator]  # as above
            case ">=":
                return bool(most >= condition.value)                        # type: ignore[operator]  # as above
    except TypeError:
        return True
