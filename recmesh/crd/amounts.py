"""Amounts that may be written as texts: what is said of them by CEL, and what by patterns."""

from collections.abc import Mapping
from typing import Any

from recmesh.crd.rules import Cel
from recmesh.spec import quantity
from recmesh.spec.quantity import STARTS

QUANTITIES = {
    quantity.cpu_cores: "cpu", quantity.memory_bytes: "memory", quantity.seconds: "duration",
    quantity.moment: "moment", quantity.start: "start",
}
"""By what a field's value is read with."""
AMOUNTS: Mapping[str, tuple[str, str]] = {
    "cpu": (r"^[0-9.]+m?$", " is no amount of cpu; write cores (1.5) or millicores (500m)"),
    "memory": (r"^[0-9.]+([kMGT]|[KMGT]i)?$",
               " is no amount of memory; write bytes or a suffix such as Mi, Gi, M, G"),
}
"""By kind of quantity: what a text must look like, and how the complaint goes on after it."""
PATTERNS: Mapping[str, str] = {
    **{kind: pattern for kind, (pattern, _) in AMOUNTS.items()},
    "duration": "^[0-9]+([.][0-9]+)?[smhd]$",
    "moment": "^[0-9]",
    "start": f"^([0-9]|({'|'.join(STARTS)})$)",
}
"""What texts must look like where CEL would cost too much: in items of lists and mappings."""


def of_amount(kind: str, bounds: Mapping[str, Any]) -> list[Cel]:
    """How an amount must look, and how much it is at least, as pydantic words it. What is too much jobmaster says."""
    pattern, complaint = AMOUNTS[kind]
    made = [Cel(f"type(self) != string || self.matches('{pattern}')", told=f'"\'" + string(self) + "\'{complaint}"')]
    least = "minimum" if "minimum" in bounds else "exclusiveMinimum"        # the one follows from the other
    words = {
        "minimum": ("isLessThan", False, "greater than or equal to"),
        "exclusiveMinimum": ("isGreaterThan", True, "greater than"),
    }
    if least in bounds:
        comparison, is_wanted, text = words[least]
        number = int(bounds[least]) if float(bounds[least]).is_integer() else bounds[least]
        compared = f"quantity(string(self)).{comparison}(quantity('{number}'))"
        holds = compared if is_wanted else f"!{compared}"
        made.append(Cel(f"!isQuantity(string(self)) || {holds}", f"Input should be {text} {number}"))
    return made
