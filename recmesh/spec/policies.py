"""What ends of a job's pods and processes mean, what becomes of its pods, and which of them are placed together.

The words are Kubernetes' own (Job `podFailurePolicy`) and Kubeflow's (`cleanPodPolicy`, `podGroupPolicy`).
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from recmesh.spec.base import Fault, Spec, rule

FailureAction = Literal["FailJob", "Ignore", "Count"]
CleanPodPolicy = Literal["All", "Running", "None"]
ExitCode = Annotated[int, Field(ge=1, le=255)]


class OnExitCodes(Spec):
    """Ends with one of these codes, or with another. A signal n is 128 + n, as containers and shells count."""

    operator: Literal["In", "NotIn"] = "In"
    values: list[ExitCode] = Field(min_length=1, max_length=255)


class OnPodCondition(Spec):
    """Ends that others brought about: eviction, preemption, loss of the node."""

    type: Literal["DisruptionTarget"] = "DisruptionTarget"


class FailureRule(Spec):
    """What an uncommanded end of a process means, where it is like this."""

    action: FailureAction
    """`FailJob`: the job fails at once. `Ignore`: another is started, and it does not count against `backoff_limit`.
    `Count`: another is started, and it counts; also for an exit code that is else a user's mistake (64)."""
    roles: list[Literal["ps", "worker", "data", "evaluator", "finisher"]] = Field(default=[], max_length=5)
    """Of these roles; empty: of all."""
    on_exit_codes: OnExitCodes | None = None
    on_pod_conditions: list[OnPodCondition] = Field(default=[], max_length=1)

    @rule
    def _one_matcher(self) -> Iterator[Fault]:
        if (self.on_exit_codes is None) == (not self.on_pod_conditions):
            yield "", "give either on_exit_codes or on_pod_conditions"


class PodFailurePolicy(Spec):
    """The first rule that fits decides; where none does, all is as without it."""

    rules: list[FailureRule] = Field(default=[], max_length=20)


class Coscheduling(Spec):
    """The coscheduling plugin of kubernetes-sigs/scheduler-plugins."""

    schedule_timeout_s: int = Field(default=60, ge=1, le=86_400)
    """So long those that have a place wait for the others."""


class Volcano(Spec):
    """Volcano."""

    queue: str = Field(default="", max_length=63)
    """Empty: its default queue."""
    priority_class: str = Field(default="", max_length=63)


class PodGroupPolicy(Spec):
    """The pods that a job cannot begin without are placed together, or none of them: all parameter servers, workers
    and data executors as many as are pinned, or their `min`. More of them come one by one."""

    coscheduling: Coscheduling | None = None
    volcano: Volcano | None = None

    @rule
    def _one_scheduler(self) -> Iterator[Fault]:
        if (self.coscheduling is None) == (self.volcano is None):
            yield "", "give either coscheduling or volcano"
