"""What an operator may set of an HN's admission; docs/reference/admission.md tells when to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from recmesh.runtime.errors import InvalidArgument, Violation

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class Settings:
    """Sizes in bytes, times in seconds; InvalidArgument names every wrong one."""

    bandwidth_bytes_per_s: float = 1.25e9
    """Of the link to this HN, until it is measured (10 Gbit/s)."""
    window_start_bytes: int = MIB
    window_min_bytes: int = 256 * KIB
    window_max_bytes: int = 64 * MIB
    congestion_high: float = 1.25
    """Above this level the window is halved. A level of 1: messages take twice as long as on a link of their own, as
    two equal ones at once do."""
    congestion_low: float = 0.25
    """Below it the window grows by one message, if it was what messages waited for."""
    margin_s: float = 0.0
    """What an ask must have to spare, and half of it still when it is granted; absorbs jitter of machines and links."""
    grant_min_s: float = 0.05
    """No grant expires earlier."""
    grant_patience: float = 4.0
    """Grants expire after so many times the expected transfer."""
    message_most_bytes: int = 64 * MIB
    waiting_most: int = 4096
    """Asks in the queue."""
    waiting_most_bytes: int = 1 << 30
    peer_waiting_most: int = 256
    """Asks of one CN in the queue."""
    undated_share: float = 0.1
    """Of the link, for messages without a deadline, while such wait."""
    undated_patience_s: float = 5.0
    """What they wait at most."""
    shares: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Weights of models, 1 where none is named: whose messages go first among those without a deadline, and whose
    asks make room when not all can be in time."""

    def __post_init__(self) -> None:
        wrong = [
            Violation(each.name, f"must be above 0, and is {getattr(self, each.name)}")
            for each in fields(self) if each.name not in _MAY_BE_ZERO and not getattr(self, each.name) > 0
        ]
        wrong += [Violation(name, "must not be negative") for name in _MAY_BE_ZERO if _negative(getattr(self, name))]
        wrong += [
            Violation(f"shares.{model}", f"must be above 0, and is {share}")
            for model, share in self.shares.items() if not share > 0
        ]
        if not self.window_min_bytes <= self.window_start_bytes <= self.window_max_bytes:
            wrong.append(Violation("window_start_bytes", "must be from window_min_bytes to window_max_bytes"))
        if not self.congestion_low < self.congestion_high:
            wrong.append(Violation("congestion_low", "must be below congestion_high"))
        if not self.undated_share < 1:
            wrong.append(Violation("undated_share", "must be below 1"))
        if wrong:
            raise InvalidArgument("these settings of admission make no sense", violations=wrong)

    @classmethod
    def parse(cls, given: Sequence[str]) -> "Settings":
        """From `name=value`, and `shares.model=weight`; the last of a name holds. InvalidArgument names each that is
        wrong."""
        values: dict[str, Any] = {}
        shares: dict[str, float] = {}
        wrong: list[Violation] = []
        for text in given:
            name, equals, value = text.partition("=")
            model = name.removeprefix("shares.")
            if name not in _KINDS and model in ("", name):
                wrong.append(Violation(name, "is no setting of admission" if equals else "is not name=value"))
                continue
            try:
                if model != name:
                    shares[model] = float(value)
                else:
                    values[name] = _KINDS[name](value)
            except ValueError:
                wrong.append(Violation(name, f"{value!r} is no {'whole ' if _KINDS.get(name) is int else ''}number"))
        if wrong:
            raise InvalidArgument("these settings of admission cannot be read", violations=wrong)
        if shares:
            values["shares"] = MappingProxyType(shares)
        return cls(**values)


_KINDS = {each.name: int if each.type in (int, "int") else float for each in fields(Settings) if each.name != "shares"}
_MAY_BE_ZERO = ("margin_s", "congestion_low", "undated_share", "shares")


def _negative(value: float | Mapping[str, float]) -> bool:
    return not isinstance(value, Mapping) and not value >= 0
