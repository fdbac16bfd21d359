"""What a zoo model needs of its data and which tables it makes, known before anything is started."""

from collections.abc import Sequence

from recmesh.runtime.errors import Violation
from recmesh.spec.dataset import DatasetSpec
from recmesh.spec.job import Model
from recmesh.zoo.defaults import DEFAULTS
from recmesh.zoo.params import params_violations, range_fault

FIRST_ORDER = frozenset({"wide_deep", "deepfm", "xdeepfm"})
"""An id's first-order weight is the last column of its row."""


def violations(model: Model, data: DatasetSpec) -> list[Violation]:
    """Parameters that the model does not have, and what the data lacks for it."""
    found = params_violations(model.params, DEFAULTS[model.zoo])
    if all(feature.kind == "dense" for feature in data.features):
        found.append(Violation("model.zoo", f"{model.zoo} needs a feature with ids; the data has dense ones only"))
    if model.zoo == "mmoe" and len(data.label_columns) < 2:
        found.append(Violation("model.zoo", "mmoe has one task per label and needs several: name them in data.labels"))
    if model.zoo == "din":
        found += _din_violations(model, data)
    return found


def tables(model: Model, data: DatasetSpec) -> list[str]:
    """The names of the model's embedding tables; none where the data lacks what decides them."""
    ids = [feature.name for feature in data.features if feature.kind != "dense"]
    if model.zoo == "mtrm" and model.params.get("embedding", DEFAULTS["mtrm"]["embedding"]) == "separate":
        return [*ids, *map(adapt_table, ids)]
    if model.zoo != "din":
        return ids
    if _din_violations(model, data):
        return []
    sequences = _names(data, "sequence")
    candidate = model.params.get("candidate") or _names(data, "single")[0]
    history = model.params.get("history") or sequences[0]
    own = [name for name in ids if name not in sequences or name == history]
    shared = model.params.get("share_table", DEFAULTS["din"]["share_table"])
    return [name for name in own if not shared or name != history or name == candidate]


def row_width(model: Model) -> int:
    """Of all its tables; 0 where the parameter that says it is wrong."""
    dim = model.params.get("embedding_dim", DEFAULTS[model.zoo]["embedding_dim"])
    return dim + (model.zoo in FIRST_ORDER) if not range_fault("embedding_dim", dim) else 0


def adapt_table(feature: str) -> str:
    """The name of MTRM's adapt tower's own table of a feature; no feature can be called so."""
    return f"adapt.{feature}"


def _din_violations(model: Model, data: DatasetSpec) -> list[Violation]:
    found = []
    for param, kind in (("candidate", "single"), ("history", "sequence")):
        fitting, wanted = _names(data, kind), model.params.get(param)
        if wanted and wanted not in fitting:
            reason = f"{wanted!r} is no {kind} feature; there are: {', '.join(fitting) or 'none'}"
            found.append(Violation(f"model.params.{param}", reason))
        elif not fitting:
            found.append(Violation("model.zoo", f"din needs a {kind} feature ({param}); the data has none"))
    return found


def _names(data: DatasetSpec, kind: str) -> Sequence[str]:
    return [feature.name for feature in data.features if feature.kind == kind]
