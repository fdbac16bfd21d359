"""Parameters of zoo models: defaults, and clear words about what does not fit them."""

from collections.abc import Mapping
from typing import Any

from recmesh.runtime.errors import InvalidArgument, Violation

NORM_MOMENTUM, NORM_EPSILON = 0.95, 1e-3
"""Of `dense_norm`: averages over some 20 batches, as short jobs are judged by them too."""
_SIZES = frozenset({"hidden", "cin", "bottom", "top", "expert_hidden", "tower_hidden", "attention_hidden",
                    "adapt_hidden"})
_CHOICES = {"structure": ("parallel", "stacked"), "embedding": ("separate", "shared"),
            "answer": ("corrected", "own")}


def embedding_scale(params: Mapping[str, Any]) -> float:
    """Half the width in which rows start."""
    return float(params["embedding_init"] or params["embedding_dim"] ** -0.5 / 4)


def with_defaults(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults, overlaid; InvalidArgument for unknown names and values that do not fit."""
    wrong = params_violations(given, defaults)
    if wrong:
        raise InvalidArgument("the model's parameters don't fit it", violations=wrong)
    return {**defaults, **given}


def params_violations(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[Violation]:
    """One for each unknown name and each value of another kind or out of range."""
    wrong = []
    for name, value in given.items():
        if name not in defaults:
            reason = f"is no parameter of this model; it has {', '.join(sorted(defaults))}"
        else:
            reason = range_fault(name, value)
            if not reason and not _fits(value, defaults[name]):
                reason = f"must be like {defaults[name]!r}, not {value!r}"
        if reason:
            wrong.append(Violation(f"model.params.{name}", reason))
    return wrong


def range_fault(name: str, value: Any) -> str:
    """What is wrong with the value of a parameter that most models share; empty when nothing is, or it is unknown."""
    if name == "embedding_dim":
        return "" if _is_whole(value) and 0 < value <= 4096 else "must be a whole number from 1 to 4096"
    if name in _SIZES:
        good = isinstance(value, list | tuple) and all(_is_whole(item) and item > 0 for item in value)
        return "" if good else "must be a list of whole numbers above 0"
    if name in ("cross_layers", "cross_rank"):
        return "" if _is_whole(value) and value >= 0 else "must be a whole number, not below 0"
    if name == "experts":
        return "" if _is_whole(value) and value > 0 else "must be a whole number above 0"
    if name in ("dropout", "embedding_dropout"):
        good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1
        return "" if good else "must be a number from 0 to below 1"
    if name == "embedding_init":
        good = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
        return "" if good else "must be a number, not below 0"
    if name == "adapt_rate":
        good = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
        return "" if good else "must be a number above 0"
    if name in _CHOICES:
        return "" if value in _CHOICES[name] else f"must be {' or '.join(_CHOICES[name])}"
    return ""


def _fits(value: Any, default: Any) -> bool:
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, float):
        return isinstance(value, (int, float))
    if isinstance(default, list):
        return isinstance(value, list) and all(_fits(item, default[0]) for item in value if default)
    return isinstance(value, type(default))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
