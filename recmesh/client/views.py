"""What gateway answers, typed. Field names are those of the wire; unknown fields are left out."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

_NUMBERS = ("metrics", "coefficients")
"""Mappings of numbers, of which some may be null."""

OVER = ("Succeeded", "Failed", "Stopped")
"""Phases after which nothing more happens."""


class View(BaseModel):
    """Lenient on purpose: an older client must read a newer server's answer."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        """Null is "not known": a message that is not set, or a number that JSON cannot hold."""
        if not isinstance(value, dict):
            return value
        known = {key: item for key, item in value.items() if item is not None}
        return {key: _without_nulls(item) if key in _NUMBERS else item for key, item in known.items()}


class StepTimes(View):
    """Mean seconds of one training step, by part, over the last report interval."""

    data_s: float = 0.0
    pull_s: float = 0.0
    compute_s: float = 0.0
    push_s: float = 0.0
    total_s: float = 0.0
    steps: int = 0


class Progress(View):
    """How far a job is."""

    samples: int = 0
    total: int = 0
    samples_per_s: float = 0.0
    eta_s: float = 0.0
    epochs: int = 0
    requeues: int = 0
    quarantined: int = 0
    skipped_nan: int = 0
    bad_records: int = 0
    waits_for: str = ""
    event_time: float = 0.0
    partitions: int = 0
    lag_messages: int = 0
    lag_s: float = 0.0

    @property
    def share(self) -> float:
        """Done samples as a fraction; 0 when the total is not known yet."""
        return min(1.0, self.samples / self.total) if self.total else 0.0


class Serving(View):
    """What a data executor's buffer holds; `forwarded`, `taken` and `decoded` count tasks since its start."""

    queued: int = 0
    held_bytes: int = 0
    limit_bytes: int = 0
    accepting: bool = False
    forwarded: int = 0
    taken: int = 0
    decoded: int = 0
    waited_s: float = 0.0


class Role(View):
    """One process of a job."""

    role: str
    index: int = 0
    state: str = ""
    handle: str = ""
    address: str = ""
    restarts: int = 0
    exit_reason: str = ""
    samples_per_s: float = 0.0
    step: StepTimes | None = None
    memory_bytes: int = 0
    cpu_limit: float = 0.0
    """Cores; 0: none."""
    memory_limit_bytes: int = 0
    """0: none."""
    cpu_s: float = 0.0
    rows: int = 0
    samples: int = 0
    since: float = 0.0
    serving: Serving | None = None
    """Data executors."""
    node: str = ""
    """The machine that it runs on; empty: not known."""


class Transition(View):
    """A change of a job's phase."""

    from_phase: str = ""
    to_phase: str = ""
    reason: str = ""
    at: float = 0.0


class Job(View):
    """A job as it is now."""

    job_id: str
    name: str = ""
    owner: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    phase: str = ""
    reason: str = ""
    message: str = ""
    created: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    gen: int = 0
    snapshot: int = 0
    progress: Progress = Progress()
    roles: list[Role] = Field(default_factory=list)
    metrics: dict[str, float] = Field(default_factory=dict)
    model_name: str = ""
    model_version: str = ""
    model_uri: str = ""
    transitions: list[Transition] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    wanted: dict[str, int] = Field(default_factory=dict)
    pinned: dict[str, bool] = Field(default_factory=dict)
    spec: dict[str, Any] | None = None

    @property
    def over(self) -> bool:
        """True when nothing more will happen."""
        return self.phase in OVER


class JobPage(View):
    """Some jobs, and how to go on."""

    jobs: list[Job] = Field(default_factory=list)
    next_page_token: str = ""


class Event(View):
    """A fact about a job."""

    sequence: int = 0
    """Its place on the bus; grows, with gaps."""
    id: str = ""
    type: str = ""
    time: float | str = 0.0
    source: str = ""
    data: dict[str, Any] = Field(default_factory=dict)


class Checkpoint(View):
    """A snapshot of a job."""

    snapshot: int = 0
    state: str = ""
    reason: str = ""
    """Why it failed, or what is damaged."""
    created: float = 0.0
    committed: float = 0.0
    rows: int = 0
    samples: int = 0
    size_bytes: int = 0
    uri: str = ""
    tiers: list[str] = Field(default_factory=list)


class RoleLog(View):
    """The last lines that one process of a job wrote."""

    role: str = ""
    index: int = 0
    incarnation: str = ""
    lines: list[str] = Field(default_factory=list)


class Model(View):
    """A registered version of a model."""

    name: str
    version: str = ""
    uri: str = ""
    framework: str = ""
    job_id: str = ""
    snapshot: int = 0
    metrics: dict[str, float] = Field(default_factory=dict)
    created: float = 0.0
    state: str = ""
    reason: str = ""


class ServedVersion(View):
    """A version of a model, and how it has answered since the gateway's start."""

    version: str
    state: str = ""
    reason: str = ""
    is_ready: bool = False
    in_flight: int = 0
    requests: int = 0
    errors: int = 0
    samples: int = 0
    p50_s: float = 0.0
    p90_s: float = 0.0
    p99_s: float = 0.0


class Served(View):
    """A model under traffic."""

    name: str
    requests_per_s: float = 0.0
    """Over the newest step that is over."""
    versions: list[ServedVersion] = Field(default_factory=list)


def _without_nulls(items: Any) -> Any:
    if not isinstance(items, dict):
        return items
    return {key: item for key, item in items.items() if item is not None}
