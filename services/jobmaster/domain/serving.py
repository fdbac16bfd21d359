"""What is known of `export.serving` when a job is submitted: settings with which its model could never be loaded.

Devices and variables of the gateway's machine are its own matter, and may be others by the time of the export.
"""

from recmesh.runtime.errors import Violation
from recmesh.serving.settings import ServingSettings
from recmesh.spec.job import TrainingJob
from recmesh.zoo import needs


def unservable(spec: TrainingJob, serving: ServingSettings) -> list[Violation]:
    """One for each setting that the model, or its last version, would be refused for, or that is of no table."""
    found: list[Violation] = []
    if spec.export is not None and spec.export.serve and serving.split == "always":
        found.append(Violation("export.serving.split", _never_split(spec)))
    if spec.freshness is None:
        return found
    if serving.freshness.held:
        reason = "a new job has no version that could be held; `recmesh rollback` holds one when there is"
        found.append(Violation("export.serving.freshness.held", reason))
    return found + _miss_violations(spec, serving)


def _never_split(spec: TrainingJob) -> str:
    if spec.freshness is not None:
        return (
            "always would refuse the version that is exported at the job's end, which is not split; "
            "freshness.halves is for those before"
        )
    return (
        "always would refuse the model: what a job exports is not split. Leave it at auto, or with export.serve false "
        "run `recmesh partition` on the export, then load it"
    )


def _miss_violations(spec: TrainingJob, serving: ServingSettings) -> list[Violation]:
    """Tables of the zoo's models are known, of one width; those of a model of one's own when it is built."""
    if not spec.model.zoo or spec.data is None:
        return []
    found: list[Violation] = []
    tables, width = needs.tables(spec.model, spec.data), needs.row_width(spec.model)
    if not tables or not width:
        return []                                # that is told of where it is wrong
    for name, policy in serving.embeddings.miss.items():
        path = f"export.serving.embeddings.miss.{name}"
        if name != "*" and name not in tables:
            found.append(Violation(path, f"the model has no such table; it has {', '.join(tables)}"))
        elif policy.kind == "default" and len(policy.value) != width:
            reason = f"has {len(policy.value)} numbers, and the model's rows have {width}"
            found.append(Violation(f"{path}.value", reason))
    return found
