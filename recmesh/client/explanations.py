"""What brain says of a job, typed: `Explanation.model_validate(mesh.plan(job_id))`. Field names are the wire's."""

from pydantic import Field

from recmesh.client.views import View


class RolePlan(View):
    """How many processes of a role, and how large each; 0: no limit."""

    role: str = ""
    replicas: int = 0
    cpu: float = 0.0
    memory_bytes: int = 0
    gpu: float = 0.0
    gpu_kind: str = ""


class Similar(View):
    """A past job that a plan was made from."""

    job_id: str = ""
    similarity: float = 0.0
    why: str = ""


class Plan(View):
    """What a job should have, and why."""

    plan_id: str = ""
    roles: list[RolePlan] = Field(default_factory=list)
    source: str = ""
    """`default` or `similar`; of a change while it trains the planner's name."""
    explanation: str = ""
    similar: list[Similar] = Field(default_factory=list)


class Profile(View):
    """How a job did at one moment."""

    at: float = 0.0
    workers: int = 0
    ps: int = 0
    samples_per_s: float = 0.0
    data_s: float = 0.0
    pull_s: float = 0.0
    compute_s: float = 0.0
    push_s: float = 0.0
    ps_busy_share: float = 0.0
    is_steady: bool = False

    @property
    def step_s(self) -> dict[str, float]:
        """Seconds of a step by part; all 0 where only a speed was told."""
        return {"data": self.data_s, "pull": self.pull_s, "compute": self.compute_s, "push": self.push_s}


class FitPoint(View):
    """One configuration, as it was measured and as the model has it."""

    workers: int = 0
    ps: int = 0
    worker_cpu: float = 0.0
    ps_cpu: float = 0.0
    measured: float = 0.0
    predicted: float = 0.0
    """0: there is no model."""
    log_sd: float = 0.0
    """Standard deviation of the prediction's logarithm."""
    at: float = 0.0


class Fit(View):
    """What was learned of a job's speed."""

    form: str = ""
    error: float = 0.0
    """Mean |ln| error of a point predicted from all others."""
    coefficients: dict[str, float] = Field(default_factory=dict)
    points: list[FitPoint] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    unknown: str = ""
    """Why there is no model; then the rest is empty."""


class FrontPoint(View):
    """A candidate that was considered; cost and gain beside what the job had."""

    workers: int = 0
    ps: int = 0
    worker_cpu: float = 0.0
    ps_cpu: float = 0.0
    cost: float = 0.0
    gain: float = 0.0
    samples_per_s: float = 0.0
    reason: str = ""
    why: str = ""
    is_chosen: bool = False


class ScheduleStep(View):
    """A step of an online job's schedule; rates are samples per second."""

    at: float = 0.0
    demand: float = 0.0
    """To be planned for: a quantile of the forecast."""
    expected: float = 0.0
    """The forecast's mean."""
    workers: int = 0
    capacity: float = 0.0
    """That so many workers have, as far as is known."""
    why: str = ""
    unmet: bool = False


class Look(View):
    """What brain saw and decided when it looked at a job that trained."""

    job_id: str = ""
    """Empty where it is part of a job's explanation."""
    at: float = 0.0
    planner: str = ""
    reason: str = ""
    why: str = ""
    samples_per_s: float = 0.0
    now: list[RolePlan] = Field(default_factory=list)
    chosen: list[RolePlan] = Field(default_factory=list)
    """Empty: it kept what it had."""
    expected_samples_per_s: float = 0.0
    fit: Fit = Fit()
    front: list[FrontPoint] = Field(default_factory=list)
    plan_id: str = ""
    schedule: list[ScheduleStep] = Field(default_factory=list)
    """Of an online job."""
    step_s: float = 0.0
    """Of the schedule."""


class Change(View):
    """What came of a plan that a job was given while it trained."""

    plan_id: str = ""
    job_id: str = ""
    at: float = 0.0
    verdict: str = ""
    """kept | taken back | cancelled"""
    why: str = ""
    before: list[RolePlan] = Field(default_factory=list)
    after: list[RolePlan] = Field(default_factory=list)
    rate_before: float = 0.0
    rate_expected: float = 0.0
    rate_after: float = 0.0
    """0: it was not measured."""
    overhead_s: float = 0.0


class Explanation(View):
    """Why a job has what it has."""

    plan: Plan | None = None
    """The newest."""
    first: Plan | None = None
    """What it began with."""
    profiles: list[Profile] = Field(default_factory=list)
    """Oldest first."""
    look: Look | None = None
    """The newest."""
    decisions: list[Look] = Field(default_factory=list)
    """Those that led to a plan, the newest first."""
    changes: list[Change] = Field(default_factory=list)
    """The newest first."""
    text: str = ""

    @property
    def weighed(self) -> Look | None:
        """The newest look at which there was something to choose from."""
        return next((look for look in [*filter(None, [self.look]), *self.decisions] if look.front), None)

    @property
    def step_s(self) -> dict[str, float]:
        """Seconds of a step by part, by the newest profile that knows; empty when none does."""
        return next((each.step_s for each in reversed(self.profiles) if sum(each.step_s.values()) > 0), {})
