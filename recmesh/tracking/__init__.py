"""Metrics of jobs, for TensorBoard and MLflow, through their own libraries.

    python -m recmesh.tracking --tensorboard DIR --mlflow URI

A process of its own beside jobmaster: what the libraries take (memory, threads, a tracking server's time) is not taken
from those who train. It reads a line of JSON for each `Report`, and answers each with one line: `{"errors": {...}}`, by
sink. A report that was told before changes nothing, or is a second point at the same step.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

Kind = Literal["tensorboard", "mlflow"]
LIBRARIES: Mapping[Kind, tuple[str, str]] = {
    "tensorboard": ("tensorboard", "recmesh[tensorboard]"), "mlflow": ("mlflow", "recmesh[mlflow]"),
}  # fmt: skip
"""What is imported, and the extra that installs it."""


@dataclass(frozen=True, slots=True)
class Report:
    """Of one job, at one moment."""

    job_id: str
    created: float
    """Unix seconds; a job of the same name that was submitted later is another run."""
    sinks: tuple[Kind, ...]
    experiment: str
    at: float
    step: int
    """Samples trained."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    """What the job was submitted with; the same each time."""
    ended: str = ""
    """The phase that it ended in."""


class Sink(Protocol):
    """Where reports go."""

    def write(self, report: Report) -> None:
        """Returns when the library has taken it; raises what the library raises."""
        ...

    def close(self) -> None:
        """What is buffered is written."""
        ...
