"""Parameters of zoo models: defaults, and clear words about what does not fit them."""

from collections.abc import Mapping
from typing import Any

from recmesh.runtime.errors import InvalidArgument, Violation

INPUTS: dict[str, Any] = {
    "embedding_dim": 16,
    "embedding_init": 0.0,     # rows start uniformly within ± this; 0: a quarter of 1/sqrt(embedding_dim)
    "embedding_dropout": 0.0,  # share of the looked-up numbers; first-order weights are spared
    "dense_norm": False,       # dense columns less their mean, over their deviation: the batch's, averaged for serving
}
"""What every model of the zoo can be told about its inputs."""
NORM_MOMENTUM, NORM_EPSILON = 0.95, 1e-3
"""Of `dense_norm`: averages over some 20 batches, as short jobs are judged by them too."""


def embedding_scale(params: Mapping[str, Any]) -> float:
    """Half the width in which rows start."""
    return float(params["embedding_init"] or params["embedding_dim"] ** -0.5 / 4)


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
