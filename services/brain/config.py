"""What the environment may set, with prefix `RECMESH_`."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from recmesh.plugins.planning import INTERVAL_S
from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.runtime.loopback import is_loopback
from recmesh.runtime.settings import ServiceSettings
from recmesh.runtime.tls import Tls
from services.brain.domain.topology.model import APP_LABELS, NETWORK_POD_LABELS, NIC, SWITCH_LABELS, Rules

LOAN_STEP_S = 60.0
"""At most: gateways that are silent for two minutes need nothing, jobs that are for five are asked for nothing."""


class OwnerQuota(BaseModel):
    """What all jobs of an owner may hold together."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    cpu: float = Field(ge=0)
    memory_gib: float = Field(ge=0)
    gpus: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    """By kind; a kind that is not named: none."""


class LoanUnit(BaseModel):
    """Room of one HN."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    cpu: float = Field(default=1.0, gt=0)
    memory_gib: float = Field(default=0.0, ge=0)
    gpus: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """By kind; a share for a slice."""


class LoanSettings(BaseModel):
    """What training lends to serving."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    own: int = Field(ge=0)
    """HNs that serving has room for without loans."""
    most: int = Field(ge=1)
    """HNs that training may make room for at a time."""
    most_draining: int = Field(default=4, ge=1)
    """The drain budget: of these, so many at a time."""
    drain_s: float = Field(default=60.0, gt=0)
    """Until a worker has left."""
    start_s: float = Field(default=60.0, ge=0)
    """Until an HN takes requests."""
    return_s: float = Field(default=60.0, ge=0)
    """Until an HN has left."""
    hold_s: float = Field(default=300.0, ge=0)
    """Room that is needed again within so long is kept."""
    notice_s: float = Field(default=300.0, ge=0)
    """Loans are renewed until so long before they must be on their way back."""
    slack_s: float = Field(default=900.0, ge=0)
    """Promised beyond the forecast's end."""
    step_s: float = Field(default=5.0, gt=0, le=LOAN_STEP_S)
    """Between two looks, and between two asks of a job: who asks more rarely is taken to be gone."""
    unit: LoanUnit = LoanUnit()
    latency_ms: float = Field(default=0.0, ge=0)
    """Workers leave a node where requests take longer than this in HNs; 0: none does."""
    evict_after_s: float = Field(default=30.0, ge=0)
    """... for so long."""
    evict_settle_s: float = Field(default=60.0, ge=0)
    """Between two that leave a node."""
    admit_after_s: float = Field(default=300.0, ge=0)
    """They may come back after requests took less than 0.8 of it for so long."""


class BrainSettings(ServiceSettings):
    """Where the config DB is, and how plans are made."""

    database_url: SecretStr = SecretStr("")
    """`sqlite:///file` or `postgresql://user:password@host/name`; empty: a file in the data folder."""
    warm_start_jobs: int = Field(default=5, ge=1)
    """k: how many similar jobs a plan is made from."""
    warm_start_weight: float = Field(default=0.5, gt=0, le=1)
    """μ: weight of the more similar job against all less similar ones."""
    warm_start_likeness: float = Field(default=0.5, ge=0, le=1)
    """s_min: jobs less alike than this are not similar."""
    planner: str = "pareto-greedy"
    """Plans jobs that train: pareto-greedy, optimus, elastic-scheduler, static, or one that a package adds."""
    plan_interval_s: float = Field(default=INTERVAL_S, ge=0)
    """So often jobs ask; what was meant for one that asks no more is free after three times as long. 0, with which
    jobmaster never asks, is as the default."""
    plan_horizon_s: float = Field(default=3600.0, gt=0)
    """The longest time over which a gain may pay back what the change costs."""
    plan_rho: float = 2.5
    """Weight of jobs that end soon: 0 all alike, below 0 long jobs first."""
    plan_epsilon: float = Field(default=0.05, ge=0, lt=1)
    """Share of its speed that a job may lose for giving back resources."""
    resize_window_s: float = Field(default=600.0, gt=0)
    """So long the use of a job's processes is watched before their cores and memory follow it."""
    executors_low: float = Field(default=0.3, ge=0, le=1)
    """Data executors whose buffers are emptier get company, ..."""
    executors_high: float = Field(default=0.8, ge=0, le=1)
    """... and those whose are fuller become fewer, ..."""
    executors_cooldown_s: float = Field(default=300.0, ge=0)
    """... so long after the last change."""
    executors_grow_after_s: float = Field(default=30.0, ge=0)
    """The same pause before there are more."""
    cpu_min: float = Field(default=0.5, gt=0)
    """Least cores of one process, where its user names none."""
    cpu_max: float = Field(default=8.0, gt=0)
    """Most cores of one process, where its user names none."""
    quotas: dict[str, OwnerQuota] = Field(default_factory=dict)
    """By owner, or by namespace as `namespace:NAME`, as JSON: what all their jobs may hold together,
    {"ads": {"cpu": 64, "memory_gib": 256, "gpus": {"a100": 4}}}. A job counts for its namespace's, if there is one."""
    loans: LoanSettings | None = None
    """Room that training lends to serving, as JSON: {"own": 4, "most": 8, "unit": {"cpu": 2}}; none: nothing."""
    seed: int = 0
    """Of the planner's random choices."""
    profiles_per_job: int = Field(default=2000, ge=1)
    profile_days: float = Field(default=30.0, gt=0)
    """Profiles and plans older than this are forgotten."""
    history_days: float = Field(default=730.0, gt=0)
    """Histories of jobs that ended longer ago are forgotten: first plans no longer come from them."""
    placement_address: str = ""
    """host:port of the scheduler extender; empty: none."""
    placement_insecure: bool = False
    """Plain HTTP for everybody who reaches the address: something else (a network policy) keeps others out."""
    placement_app_labels: list[str] = Field(default=list(APP_LABELS))
    """Labels of pods that name their application, as JSON; the first that a pod has counts."""
    placement_network_pod_labels: list[str] = Field(default=list(NETWORK_POD_LABELS))
    """Labels of nodes that name their network pod."""
    placement_switch_labels: list[str] = Field(default=list(SWITCH_LABELS))
    """Labels of nodes that name their access switch, or rack."""
    placement_nic: str = NIC
    """Extended resource that stands for bandwidth of network cards."""
    placement_switch_share: float = Field(default=0.8, gt=0, le=1)
    """Of a switch's capacity, that pods under it may be promised."""
    placement_most_per_node: int = Field(default=0, ge=0)
    """Of an application's pods, where their annotation names no other bound; 0: none."""
    placement_most_per_switch: int = Field(default=0, ge=0)
    """The same under a switch."""
    placement_one_network_pod: bool = True
    """False: pods of an application that its network pod has no room for go to others."""
    kube_config: Path | None = None
    """A kubeconfig, for placement; none: the service account of the pod that this runs in."""
    kube_context: str = ""
    """Of the kubeconfig; empty: its current one."""

    @model_validator(mode="after")
    def _the_band_is_one(self) -> Self:
        if self.executors_low >= self.executors_high:
            raise ValueError(f"executors_low {self.executors_low} must be below executors_high {self.executors_high}")
        return self

    @property
    def database(self) -> str:
        """The database's address; it may hold a password."""
        return self.database_url.get_secret_value() or f"sqlite:///{self.data_dir.absolute()}/db/brain.sqlite"

    @property
    def placement_tls(self) -> Tls | None:
        """Certificates of the extender: the mesh's own.

        A scheduler can send no token, so its certificate is what lets it in: InvalidArgument for an address that others
        can reach without one.
        """
        tls = None if self.placement_insecure else self.tls
        closed = self.placement_insecure or is_loopback(self.placement_address) or (tls is not None and tls.ca)
        if self.placement_address and not closed:
            reason = (
                "can be reached by others, and a scheduler sends no token: set RECMESH_TLS_CERT, _KEY and _CA, so that "
                "only certificates of the mesh are let in, or RECMESH_PLACEMENT_INSECURE=true where something else does"
            )
            raise InvalidArgument(
                "the address of the scheduler extender is open", reason="BAD_CONFIG",
                violations=[Violation("RECMESH_PLACEMENT_ADDRESS", reason)],
            )
        return tls

    @property
    def placement_rules(self) -> Rules:
        """What the extender follows."""
        return Rules(
            app_labels=self.placement_app_labels, network_pod_labels=self.placement_network_pod_labels,
            switch_labels=self.placement_switch_labels, nic=self.placement_nic,
            switch_share=self.placement_switch_share, most_per_node=self.placement_most_per_node,
            most_per_switch=self.placement_most_per_switch, one_network_pod=self.placement_one_network_pod,
        )  # fmt: skip
