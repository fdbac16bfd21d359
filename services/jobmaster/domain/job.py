"""What jobmaster remembers of a job: the accepted job, what users ask of it, and its status."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, ConfigDict

from services.jobmaster.domain.ledgers import Interval
from services.jobmaster.domain.phase import ENDED, Phase

RoleName = Literal["ps", "worker", "data", "evaluator", "finisher"]
RoleStage = Literal["starting", "running", "draining", "exited"]
RoleKey = tuple[str, int]
"""(role, index)"""

MAX_TRANSITIONS = 200
MAX_NOTES = 50
MAX_DECISIONS = 60


class Stored(BaseModel):
    """Base of everything that lies in the KV as JSON. Unknown fields of a newer version are ignored."""

    model_config = ConfigDict(frozen=True)


class Size(Stored):
    """How large a process is to be; 0: as it is planned."""

    cpu: float = 0.0
    memory_bytes: int = 0


class Intent(Stored):
    """What users have asked for, durable before they are answered. The newest wish wins."""

    stop: bool = False
    finish: bool = False
    delete: bool = False
    reason: str = ""
    replicas: dict[str, int] = {}
    """Pins by role; what `recmesh scale` set."""
    cleared: tuple[str, ...] = ()
    """Roles whose pin in the spec was lifted."""
    sizes: dict[str, Size] = {}
    """By role; processes get another size in place, or else are replaced one by one."""
    checkpoint: int = 0
    """Counts requests for a snapshot."""
    suspend: bool = False
    """Nothing of it is to run until it is resumed."""
    suspensions: int = 0
    """Counts how often that was asked."""

    @property
    def winds_down(self) -> bool:
        """Its workers are to go, and what they trained is to be saved."""
        return self.stop or self.suspend


class ObjectRef(Stored):
    """An object of Kubernetes."""

    namespace: str
    name: str
    uid: str


DAY_S = 86_400.0


class AcceptedJob(Stored):
    """A job as it was submitted; only `intent` changes afterwards."""

    job_id: str
    spec_json: str
    """With its dataset resolved, so that a later change of the registered one changes nothing here."""
    request_id: str = ""
    submitter: str = ""
    created: float
    data_rows: int = 0
    data_bytes: int = 0
    init_snapshot: int = 0
    init_parts: tuple[str, ...] = ()
    """The snapshot of another job from which it starts."""
    spec_digest: str = ""
    """Of the specification as it was submitted."""
    object: ObjectRef | None = None
    """The TrainingJob object that is its intent; None: this document is."""
    intent: Intent = Intent()
    revision: int = 0
    """Of the KV key as last read."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a cluster has free for more processes."""

    cpu: float
    memory_bytes: int
    gpus: Mapping[str, float] = field(default_factory=dict)
    """By kind; empty where there are none, or nobody tells."""
    node_cpu: float = math.inf
    """Of the node that has most; infinite: nobody tells."""
    node_memory_bytes: float = math.inf
    cluster: str = ""
    """Whose room it is, where there are several."""


class RolePlan(Stored):
    """How many processes of a role, and how large; 0 means no limit."""

    replicas: int
    cpu: float = 0.0
    memory_bytes: int = 0
    gpu: float = 0.0
    gpu_kind: str = ""


class RoleState(Stored):
    """One process of a role: the current attempt, or the last one."""

    role: str
    index: int
    attempt: int = 1
    """Processes started for this place so far; part of the process's name."""
    stage: RoleStage = "starting"
    incarnation: str = ""
    address: str = ""
    handle: str = ""
    node: str = ""
    """The machine, as the process says when it registers; empty: not known."""
    since: float = 0.0
    exit_reason: str = ""
    done: bool = False
    """It ended by itself with nothing left to do."""
    streak: int = 0
    """Uncommanded ends in a row; the next start waits longer."""
    retry_at: float = 0.0
    samples: int = 0
    """Of attempts that ended."""
    size: RolePlan | None = None
    """How large this attempt was started; None: not known."""
    leaving: str = ""
    """Why this process is to be replaced, once its slots have gone elsewhere; empty: it stays."""
    leaving_since: float = 0.0
    left_at: float = 0.0
    """When it ceased to be a member of its generation."""
    weight: float = 1.0
    """How many slots this process can bear, relative to a parameter server that was never hot."""

    @property
    def key(self) -> RoleKey:
        """Which place of the job it fills."""
        return self.role, self.index

    @property
    def place(self) -> str:
        """For people: `worker 1`."""
        return f"{self.role} {self.index}"

    @property
    def name(self) -> str:
        """The process's name: unique in the job's life."""
        return f"{self.role}-{self.index}-{self.attempt}"

    @property
    def is_live(self) -> bool:
        """Not known to have ended."""
        return self.stage != "exited"


class Transition(Stored):
    """A change of phase."""

    source: str
    target: str
    reason: str
    at: float


class Ending(Stored):
    """How the job will end, once its processes are gone."""

    phase: Phase
    reason: str
    message: str = ""


class Deadly(Stored):
    """A batch in whose compute workers died."""

    batch: Interval
    deaths: int
    told: bool = False
    """It was set aside, and everybody has heard of it."""


class SlowWorker(Stored):
    """A worker that was found to be slow, and what was done about it so far."""

    index: int
    incarnation: str
    level: int
    """1, 2: smaller and smaller shards; 3: a backup worker helps; 0: it recovered, which shardsvc is yet to hear."""
    since: float
    at: float
    """Of the last answer."""
    share: float = 0.0
    """Of the median of its peers, when last answered."""


class Relief(Stored):
    """A hot parameter server gives slots away, or shall; over when they are placed, or it is given up."""

    ps: int
    since: float
    owned: int
    """Slots that it had."""
    goal: str
    """Which server shall own which slot, as the run record encodes it."""


class Decision(Stored):
    """One line of the job's timeline."""

    number: int
    at: float
    matter: str
    """straggler | memory | termination | ..."""
    place: str
    """`worker 1`; empty when it concerns the job."""
    seen: str
    decided: str
    done: str = ""
    effect: str = ""


class Trial(Stored):
    """A change that brain proposed and that is being carried out and judged, or taken back."""

    plan_id: str
    decision: int
    """Its line in the timeline."""
    planner: str = ""
    why: str = ""
    before: dict[str, RolePlan]
    after: dict[str, RolePlan]
    rate_before: float
    """Samples per second, measured."""
    rate_expected: float
    began: float
    samples: int
    """Trained when it began."""
    generation: int
    settled: float = 0.0
    """When all that it asks for was there; 0: not yet."""
    overhead_s: float = 0.0
    """Seconds of training that the change itself cost, measured."""
    taken_back_at: float = 0.0
    taken_back: str = ""
    """Why the plan of before holds again; empty: it does not."""


class Outcome(Stored):
    """What came of a change: it becomes brain's experience."""

    plan_id: str
    job_id: str
    at: float
    verdict: str
    """kept | taken back | cancelled"""
    why: str
    before: dict[str, RolePlan]
    after: dict[str, RolePlan]
    rate_before: float
    rate_expected: float
    rate_after: float
    """0: it was not measured."""
    overhead_s: float


class Closing(Stored):
    """The way from the closing snapshot to success."""

    snapshot: int
    samples: int
    early: bool = False
    model_name: str = ""
    version: str = ""
    export_uri: str = ""
    framework: str = ""
    reported: bool = False
    reported_at: float = 0.0
    registered: bool = False


class Publication(Stored):
    """The way of a model that is served while it trains, to the gateway."""

    model_name: str
    version: str
    export_uri: str
    snapshot: int = 0
    """That it was exported from."""
    framework: str = ""
    by: str = ""
    """The incarnation of the finisher that has exported it; empty: none yet."""
    registered: bool = False


class JobStatus(Stored):
    """What happened so far. Written by the job's runner alone."""

    job_id: str
    phase: Phase = Phase.PENDING
    reason: str = "Accepted"
    message: str = ""
    started: float = 0.0
    ended: float = 0.0
    plan: dict[str, RolePlan] = {}
    plan_source: str = ""
    trial: Trial | None = None
    """At most one change of the plan at a time."""
    untold: tuple[Outcome, ...] = ()
    """What brain has not been told yet, the oldest first."""
    asked_plan_at: float = 0.0
    """When brain was last asked for a better plan."""
    lent: int = 0
    """Workers that it does without for serving's sake; they are not in its plan."""
    roles: tuple[RoleState, ...] = ()
    failures: int = 0
    """Uncommanded ends of roles that count against `backoff_limit`."""
    mistakes: int = 0
    """Processes that ended with the exit code of a user's mistake."""
    mistake: str = ""
    deadly: tuple[Deadly, ...] = ()
    """In the order in which they were found."""
    quarantined: int = 0
    rollbacks: int = 0
    skipped_nan: int = 0
    """By processes that ended."""
    bad_records: int = 0
    """Left out by processes that ended."""
    total: int = 0
    goes_on: bool = False
    """The data are streams whose last window is not known yet: `total` grows."""
    waits_for: str = ""
    """Why no more data come now."""
    event_time: float = 0.0
    """Where the newest window begins that is served, unix seconds."""
    partitions: int = 0
    """Of topics that it trains on."""
    lag_messages: int = 0
    """Messages of topics that are not trained yet."""
    lag_s: float = 0.0
    """Age of the oldest of these."""
    scaled_at: float = 0.0
    """When the number of workers last followed what comes in."""
    lead_s: float = 0.0
    """From a decision until its workers train, as measured; 0: not yet."""
    pause_s: float = 0.0
    """For so long such a change stops training, as measured."""
    samples: int = 0
    samples_per_s: float = 0.0
    """Over the last seconds; of a job that has ended, the mean over its time of training."""
    trained_since: float = 0.0
    """When the first generation was opened."""
    requeues: int = 0
    log_last_sequence: int = 0
    snapshot_at: float = 0.0
    snapshot_bytes: int = 0
    """Of the largest snapshot of this job: about what a restore reads."""
    snapshot_samples: int = 0
    """Progress as it was known at the last snapshot: nothing new, no snapshot by policy."""
    checkpoint_served: int = 0
    """The last request for a snapshot that was answered."""
    stop_snapshot_tried: bool = False
    suspension_saved: int = 0
    """The last request to suspend it for which a snapshot was cut, or tried."""
    suspended_at: float = 0.0
    """When its processes were gone."""
    settled_workers: int = 0
    """The number of workers that the phase Running stands for."""
    settled_ps: tuple[int, ...] = ()
    """The parameter servers over which the slots were last placed, all of them."""
    rebalance: str = ""
    """Why the slots are to be placed anew on the same servers; empty: they are not."""
    relief: Relief | None = None
    placed_at: float = 0.0
    """When slots were last placed: loads of before say nothing of those after."""
    judged_at: float = 0.0
    """When a parameter server was last found hot."""
    ending: Ending | None = None
    recorded: bool = False
    """brain has its history."""
    closing: Closing | None = None
    publication: Publication | None = None
    metrics: dict[str, float] = {}
    best_metric: float | None = None
    stale_evaluations: int = 0
    model_version: str = ""
    model_uri: str = ""
    transitions: tuple[Transition, ...] = ()
    notes: tuple[str, ...] = ()
    slow: tuple[SlowWorker, ...] = ()
    """Workers that are held to be slow now, and those of level 0."""
    timeline: tuple[Decision, ...] = ()
    memory: dict[str, int] = {}
    """Bytes by role, where a limit was raised above the plan's."""
    revision: int = 0

    @property
    def remaining(self) -> int:
        """Samples that are left; while more of them come, those of a day at least."""
        left = max(0, self.total - self.samples)
        return max(left, round(DAY_S * self.samples_per_s)) if self.goes_on else left

    @property
    def has_ended(self) -> bool:
        """Nothing of it runs any more."""
        return self.phase in ENDED

    def role(self, key: RoleKey) -> RoleState | None:
        """The place's state; None when nothing was ever started there."""
        return next((role for role in self.roles if role.key == key), None)

    def live(self, role: str) -> tuple[RoleState, ...]:
        """Processes of a role that are not known to have ended."""
        return tuple(state for state in self.roles if state.role == role and state.is_live)

    def with_role(self, state: RoleState) -> "JobStatus":
        """The status with this place's state, in order of role and index."""
        others = [role for role in self.roles if role.key != state.key]
        order = {"ps": 0, "data": 1, "worker": 2, "evaluator": 3, "finisher": 4}
        roles = sorted([*others, state], key=lambda role: (order.get(role.role, 9), role.index))
        return self.model_copy(update={"roles": tuple(roles)})

    def with_death(self, batch: Interval, *, deaths: int = 0) -> "JobStatus":
        """The status after one more worker died in the batch; or after at least so many, when others count them.

        A batch is known by its start: one that is cut again after a fault may end earlier.
        """
        known = next((item for item in self.deadly if item.batch[:2] == batch[:2]), None)
        count = max(deaths, (known.deaths if known else 0) + 1)
        others = tuple(item for item in self.deadly if item is not known)
        return self.model_copy(
            update={"deadly": (*others, Deadly(batch=batch, deaths=count, told=bool(known and known.told)))}
        )

    def with_note(self, note: str, *, instead_of: str = "") -> "JobStatus":
        """The status with a line for the user, once, in place of older ones that begin as `instead_of`."""
        if note in self.notes:
            return self
        kept = [each for each in self.notes if not instead_of or not each.startswith(instead_of)]
        return self.model_copy(update={"notes": (*kept, note)[-MAX_NOTES:]})
