"""Which versions of a model stay loaded, and which of them answers a request that names none."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from recmesh.runtime.errors import InvalidArgument, Violation

MAX_LATEST = 16


@dataclass(frozen=True, slots=True)
class Traffic:
    """The rules of one model name. The default is one version: the one that was loaded last."""

    latest: int = 1
    """How many of the versions loaded last stay; 0: all."""
    specific: tuple[str, ...] = ()
    """Only these stay, and no others are loaded; goes before `latest`."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Shares of requests that name no version; only versions that are ready count."""
    shadow: str = ""
    """This version gets copies of requests, and nobody its answers."""
    shadow_share: float = 0.0
    idle_s: float = 0.0
    """A version that was asked nothing for so long leaves memory until it is asked again; 0: never."""

    @property
    def keeps_all(self) -> bool:
        """Versions leave only when somebody asks for it."""
        return not self.specific and not self.latest

    @property
    def needed(self) -> tuple[str, ...]:
        """The versions that the rules name: they are to be loaded."""
        return tuple(dict.fromkeys((*self.specific, *self.weights, *((self.shadow,) if self.shadow else ()))))


FIELDS = frozenset(("versions", "weights", "shadow", "idle_s"))
"""Of a document of rules."""


def parse(document: Mapping[str, Any]) -> Traffic:
    """Checked rules: `versions` ({"latest": n}, {"specific": [...]} or "all"), `weights`, `shadow`, `idle_s`.

    InvalidArgument names every wrong field.
    """
    wrong = [
        Violation(name, "is not known")
        for name in sorted(set(document) - FIELDS)
    ]
    latest, specific = _versions(document.get("versions", {"latest": 1}), wrong)
    weights = _weights(document.get("weights", {}), wrong)
    shadow, share = _shadow(document.get("shadow"), wrong)
    idle_s = document.get("idle_s", 0)
    if not _is_number(idle_s) or not 0 <= idle_s <= 30 * 86_400:
        wrong.append(Violation("idle_s", f"{idle_s!r} is not a number of seconds up to 30 days"))
        idle_s = 0
    if shadow and weights.get(shadow):
        wrong.append(Violation("shadow.version", f"{shadow} has a weight too; its answers are dropped or not"))
    if wrong:
        raise InvalidArgument("the traffic rules are wrong", reason="BAD_TRAFFIC", violations=wrong)
    return Traffic(latest, specific, weights, shadow, share, float(idle_s))


def as_document(traffic: Traffic) -> dict[str, Any]:
    """The inverse of `parse`."""
    versions: Any = {"specific": list(traffic.specific)} if traffic.specific else {"latest": traffic.latest}
    shadow = {"version": traffic.shadow, "share": traffic.shadow_share} if traffic.shadow else None
    return {
        "versions": versions if traffic.specific or traffic.latest else "all",
        "weights": dict(traffic.weights), "shadow": shadow, "idle_s": traffic.idle_s,
    }  # fmt: skip


def kept(traffic: Traffic, loaded: Sequence[str]) -> set[str]:
    """Of the loaded versions, oldest load first, those that stay."""
    named = set(traffic.needed)
    if traffic.specific:
        return named & set(loaded)
    own = [version for version in loaded if version != traffic.shadow]
    return (named & set(loaded)) | set(own[-traffic.latest :] if traffic.latest else own)


def admits(traffic: Traffic, version: str) -> bool:
    """False when the rules name versions, and this is none of them."""
    return not traffic.specific or version in traffic.needed


def choose(traffic: Traffic, ready: Collection[str], at: float) -> str:
    """The version for a request, by weights of those that are ready; `at` in [0, 1) is the request's draw.

    Empty when no version with a weight is ready.
    """
    shares = [(version, weight) for version, weight in traffic.weights.items() if weight and version in ready]
    left = at * sum(weight for _, weight in shares)
    for version, weight in shares:
        left -= weight
        if left < 0:
            return version
    return shares[-1][0] if shares else ""


def _versions(value: Any, wrong: list[Violation]) -> tuple[int, tuple[str, ...]]:
    if value == "all":
        return 0, ()
    if isinstance(value, dict) and list(value) == ["latest"]:
        latest = value["latest"]
        if isinstance(latest, int) and not isinstance(latest, bool) and 1 <= latest <= MAX_LATEST:
            return latest, ()
        wrong.append(Violation("versions.latest", f"{latest!r} is not a whole number from 1 to {MAX_LATEST}"))
    elif isinstance(value, dict) and list(value) == ["specific"]:
        specific = value["specific"]
        if isinstance(specific, list) and specific and all(isinstance(item, str) for item in specific):
            return 1, tuple(specific)
        wrong.append(Violation("versions.specific", "is not a list with at least one version"))
    else:
        wrong.append(Violation("versions", 'is none of "all", {"latest": n} and {"specific": [...]}'))
    return 1, ()


def _weights(value: Any, wrong: list[Violation]) -> dict[str, float]:
    if not isinstance(value, dict):
        wrong.append(Violation("weights", "is not an object of weights by version"))
        return {}
    for version, weight in value.items():
        if not _is_number(weight) or not 0 <= weight <= 1e9:
            wrong.append(Violation(f"weights.{version}", f"{weight!r} is not a weight from 0 on"))
    if value and not any(_is_number(weight) and weight > 0 for weight in value.values()):
        wrong.append(Violation("weights", "are all 0"))
    return {} if wrong else {version: float(weight) for version, weight in value.items()}


def _shadow(value: Any, wrong: list[Violation]) -> tuple[str, float]:
    if value is None:
        return "", 0.0
    if not isinstance(value, dict) or not isinstance(value.get("version"), str) or not value["version"]:
        wrong.append(Violation("shadow", "is not an object with version and share"))
        return "", 0.0
    share = value.get("share", 1.0)
    if not _is_number(share) or not 0 < share <= 1:
        wrong.append(Violation("shadow.share", f"{share!r} is not above 0 and at most 1"))
        return "", 0.0
    return value["version"], float(share)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value
