"""What can be said of a model before anything is started.

A model of one's own knows its parameters and tables best, and refuses wrong ones when it is built (exit code 64).
What is checked of it are the shapes of parameters that most models share, so that a typing error costs no start.
"""

from recmesh.runtime.errors import Violation
from recmesh.spec.dataset import DatasetSpec
from recmesh.spec.job import Model, TrainingJob
from recmesh.zoo import needs
from recmesh.zoo.params import range_fault

CODE_PREFIX = "sha256:"


def model_violations(spec: TrainingJob) -> list[Violation]:
    """What is wrong with the model as it is submitted; its dataset is inline."""
    model, data = spec.model, spec.data
    result = needs.violations(model, data) if model.zoo and data else _params_violations(model)
    tables = needs.tables(model, data) if model.zoo and data else []
    if tables:
        result += _table_violations(spec, tables)
    if model.code and not model.code.startswith(CODE_PREFIX):
        reason = "is a folder on the submitter's machine; `recmesh submit` packs and uploads it"
        result.append(Violation("model.code", reason))
    return result


def evaluation_violations(spec: TrainingJob) -> list[Violation]:
    """What data of their own for the evaluation lack that the model takes or predicts."""
    judged = spec.evaluation.data if spec.evaluation else None
    if judged is None or spec.data is None:
        return []
    result = []
    kinds = {feature.name: feature.kind for feature in judged.features}
    for feature in spec.data.features:
        kind = kinds.get(feature.name)
        if kind is None:
            reason = f"the model has feature {feature.name} ({feature.kind}), which is missing here"
            result.append(Violation("evaluation.data.features", reason))
        elif kind != feature.kind:
            reason = f"is {kind} here and {feature.kind} in data"
            result.append(Violation(f"evaluation.data.features.{feature.name}", reason))
    # Numbers reach a model as columns of one array, by their position.
    ours, theirs = _dense(spec.data), _dense(judged)
    if not result and ours != theirs:
        reason = f"dense features must be those of data, in their order ({', '.join(ours)}), not {', '.join(theirs)}"
        result.append(Violation("evaluation.data.features", reason))
    wanted, given = spec.data.label_columns, judged.label_columns
    if len(wanted) != len(given):
        reason = f"there must be one for each label of data ({', '.join(wanted)}), not {', '.join(given)}"
        result.append(Violation("evaluation.data.labels", reason))
    return result


def _dense(data: DatasetSpec) -> list[str]:
    return [feature.name for feature in data.features if feature.kind == "dense"]


def _table_violations(spec: TrainingJob, tables: list[str]) -> list[Violation]:
    reason = f"the model has no such table; it has {', '.join(tables)}"
    return [
        Violation(f"training.{field}.{name}", reason)
        for field, given in (("table_optimizers", spec.training.table_optimizers), ("tables", spec.training.tables))
        for name in given if name != "*" and name not in tables
    ]


def _params_violations(model: Model) -> list[Violation]:
    reasons = {name: range_fault(name, value) for name, value in model.params.items() if name != "structure"}
    return [Violation(f"model.params.{name}", reason) for name, reason in reasons.items() if reason]
