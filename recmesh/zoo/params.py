"""Parameters of zoo models: defaults, and clear words about what does not fit them."""

from collections.abc import Mapping
from typing import Any

from recmesh.runtime.errors import InvalidArgument, Violation


def with_defaults(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults, overlaid; InvalidArgument for unknown names and values of another kind."""
    wrong = [
        Violation(f"model.params.{name}", f"is no parameter of this model; it has {', '.join(sorted(defaults))}")
        for name in given if name not in defaults
    ]
    for name, value in given.items():
        if name in defaults and not _fits(value, defaults[name]):
            wrong.append(Violation(f"model.params.{name}", f"must be like {defaults[name]!r}, not {value!r}"))
    if wrong:
        raise InvalidArgument("the model's parameters don't fit it", violations=wrong)
    return {**defaults, **given}


def _fits(value: Any, default: Any) -> bool:
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, float):
        return isinstance(value, (int, float))
    if isinstance(default, list):
        return isinstance(value, list) and all(_fits(item, default[0]) for item in value if default)
    return isinstance(value, type(default))
