"""What brain compares jobs by, drawn from the specification."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recmesh.spec.job import TrainingJob
from services.jobmaster.domain.job import AcceptedJob

KERAS_ZOO = frozenset({"wide_deep", "xdeepfm", "dcn_v2", "deepfm"})


@dataclass(frozen=True, slots=True)
class JobFacts:
    """Metadata of a job; zeros and empty texts where nothing is known."""

    job_id: str
    owner: str
    model: str
    framework: str
    dim: int
    tables: int
    batch_size: int
    data_rows: int
    data_bytes: int
    epochs: int
    labels: Mapping[str, str]
    priority: int
    deadline: float
    submitted: float = 0.0
    namespace: str = ""


def namespace_of(spec: TrainingJob, job: AcceptedJob) -> str:
    """Whose job it is: its object's namespace, where it has one."""
    return job.object.namespace if job.object is not None else spec.namespace or ""


def facts_of(spec: TrainingJob, job: AcceptedJob) -> JobFacts:
    """The facts of an accepted job."""
    features = spec.data.features if spec.data is not None else []
    framework = ("keras" if spec.model.zoo in KERAS_ZOO else "torch") if spec.model.zoo else ""
    return JobFacts(
        job_id=job.job_id, owner=spec.owner, model=spec.model.zoo or spec.model.entrypoint or "",
        framework=framework, dim=_whole(spec.model.params.get("embedding_dim")),
        tables=sum(feature.kind != "dense" for feature in features), batch_size=spec.training.batch_size,
        data_rows=job.data_rows, data_bytes=job.data_bytes, epochs=spec.training.epochs, labels=spec.labels,
        priority=spec.priority, deadline=spec.deadline or 0.0, submitted=job.created,
        namespace=namespace_of(spec, job),
    )


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
