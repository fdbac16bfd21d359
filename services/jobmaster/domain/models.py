"""What can be said of a model's parameters before anything is started.

The model itself knows its parameters best, and refuses wrong ones when it is built (exit code 64). What is
checked here are the shapes of those that most models share, so that a typing error costs no start.
"""

from collections.abc import Mapping
from typing import Any

from recmesh.runtime.errors import Violation
from recmesh.spec.job import Model

CODE_PREFIX = "sha256:"


def model_violations(model: Model) -> list[Violation]:
    """What is wrong with the model as it is submitted."""
    result = params_violations(model.params)
    if model.code and not model.code.startswith(CODE_PREFIX):
        reason = "is a folder on the submitter's machine; `recmesh submit` packs and uploads it"
        result.append(Violation("model.code", reason))
    return result


def params_violations(params: Mapping[str, Any]) -> list[Violation]:
    """Wrong shapes of well-known parameters."""
    result = []
    for name, value in params.items():
        reason = _reason(name, value)
        if reason:
            result.append(Violation(f"model.params.{name}", reason))
    return result


def _reason(name: str, value: Any) -> str:
    if name == "embedding_dim":
        return "" if _is_whole(value) and 0 < value <= 4096 else "must be a whole number from 1 to 4096"
    if name in ("hidden", "cin", "experts_hidden", "tower_hidden", "bottom_mlp", "top_mlp"):
        good = isinstance(value, list | tuple) and all(_is_whole(item) and item > 0 for item in value)
        return "" if good else "must be a list of whole numbers above 0"
    if name in ("cross_layers", "experts", "low_rank"):
        return "" if _is_whole(value) and value >= 0 else "must be a whole number, not below 0"
    if name == "dropout":
        good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1
        return "" if good else "must be a number from 0 to below 1"
    return ""


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
