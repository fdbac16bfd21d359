"""Everything the environment may set for jobmaster."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from recmesh.plugins.planning import INTERVAL_S
from recmesh.runtime.settings import ServiceSettings, Settings
from services.jobmaster.domain.limits import Limits


class ClusterEntry(Settings):
    """One of several clusters."""

    name: str = Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")
    kind: str = Field(pattern=r"^[a-zA-Z0-9_.-]+$")
    """As RECMESH_JOBMASTER_CLUSTER."""
    labels: dict[str, str] = Field(default_factory=dict)
    """A job whose labels ask for `cluster.X: Y` goes where X is Y; `name` is one, too."""
    settings: dict[str, str] = Field(default_factory=dict)
    """In place of jobmaster's, without RECMESH_: {"KUBE_CONTEXT": "east"}."""


class JobmasterSettings(ServiceSettings):
    """Variables are `RECMESH_` and the field's name in capitals; read once, in __main__."""

    storage_uri: str = ""
    """Root of code, models and checkpoints; empty: `storage` in the data folder."""
    cores: float = Field(default=0.0, ge=0)
    """What all jobs of this machine may have together, by the limits of their processes; 0: its cores less its load."""
    accelerators: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    """Of this machine, by kind, as JSON ({"a100": 4, "gpu": 4}, where `gpu` is any); empty: as its driver tells."""
    shm_dir: Path | None = None
    """Shared memory of this machine's processes; roles get it as RECMESH_SHM_DIR."""
    jobmaster_cluster: str = "local"
    """Where roles run: as processes of this machine (local), as pods (kubernetes), in containers of YARN (yarn), over
    several clusters (several), or where a controller of another package has them run (its name)."""
    clusters: list[ClusterEntry] = Field(default_factory=list)
    """Where RECMESH_JOBMASTER_CLUSTER is `several`: those that jobs are spread over, as JSON."""
    jobmaster_objects: Literal["store", "kubernetes"] = "store"
    """Where the intent of jobs is: in the mesh's own store, or in TrainingJob objects."""
    objects_all_namespaces: bool = False
    """Objects of all namespaces become jobs; else those of `kube_namespace` alone."""
    job_metrics_s: float = Field(default=15.0, ge=0)
    """So often at most a JobMetrics object is written beside a TrainingJob object; 0: there are none."""
    kube_config: Path | None = None
    """A kubeconfig; none: the service account of the pod that this runs in."""
    kube_context: str = ""
    """Of the kubeconfig; empty: its current one."""
    kube_namespace: str = ""
    """Of the pods, and of the objects of jobs that come by REST or event; empty: the one that this pod runs in, else
    `default`."""
    kube_image: str = ""
    """Of roles whose model names none: the trainer's, with the frameworks of the models."""
    kube_images: dict[Literal["ps", "worker", "data", "evaluator", "finisher"], str] = Field(default_factory=dict)
    """Of single roles, before `kube_image`, as JSON: {"ps": "recmesh/ps:0.1.0"}, which needs no framework."""
    kube_service_account: str = ""
    """Of role pods; empty: the namespace's default one. Its token is not mounted."""
    kube_scheduler: str = ""
    """`schedulerName` of role pods, where their template names no other; empty: the cluster's default one."""
    kube_storage_claim: str = ""
    """A PersistentVolumeClaim of `kube_namespace` that holds `storage_uri`, which is a path then: role pods mount it
    there. Empty: they reach the storage without it (an object store), or by their templates."""
    kube_tls_secret: str = ""
    """A Secret of `kube_namespace` with `tls.crt`, `tls.key` and `ca.crt`: role pods mount it, and speak TLS by it.
    Empty: they get the paths of jobmaster's own certificates, for templates to mount something there."""
    kube_user: int = Field(default=10001, ge=1)
    """User and group that role pods run as: the images' own."""
    kube_grace_s: int = Field(default=60, ge=10)
    """Between SIGTERM and SIGKILL of a role pod that is drained, evicted or deleted."""
    kube_gpus: dict[str, str] = Field(default_factory=lambda: {"gpu": "nvidia.com/gpu"})
    """Extended resources by kind of accelerator, as JSON: {"gpu": "nvidia.com/gpu", "1g.10gb":
    "nvidia.com/mig-1g.10gb"}, where `gpu` is any."""
    kube_gang_schedulers: dict[str, str] = Field(default_factory=dict)
    """`schedulerName` of pods with `pod_group_policy`, as JSON; what is not named is as the projects install them:
    {"coscheduling": "scheduler-plugins-scheduler", "volcano": "volcano"}."""
    kube_calls_per_s: float = Field(default=50.0, gt=0)
    """Calls of the API server, with bursts of twice as many."""
    kube_resize_s: float = Field(default=10.0, gt=0)
    """A pod's new size that its node has not given it by then is taken back, and the pod replaced."""
    yarn_url: str = ""
    """The ResourceManager's web address (http://rm:8088); several with commas between (high availability)."""
    yarn_user: str = ""
    """Whom YARN takes jobmaster for (simple authentication); its containers run as this user. Empty: YARN's default."""
    yarn_folder: str = ""
    """A folder that jobmaster and containers share, for orders and ends. Empty: `yarn` in the storage."""
    yarn_queue: str = ""
    """Of the services of jobs; empty: YARN's default one."""
    yarn_prefix: str = Field(default="recmesh-", pattern=r"^[a-z][a-z0-9-]{0,30}$")
    """Of their names, before the job's."""
    yarn_python: str = "python3"
    """Of the nodes, with recmesh and what the models need."""
    yarn_cpus: int = Field(default=1, ge=1)
    """Of a role without limits of its own, ..."""
    yarn_memory_bytes: int = Field(default=1 << 30, ge=64 << 20)
    """... as YARN has no containers without."""
    yarn_gpus: dict[str, str] = Field(default_factory=lambda: {"gpu": "yarn.io/gpu"})
    """Resource types by kind of accelerator, as JSON, where `gpu` is any."""
    yarn_properties: dict[str, str] = Field(default_factory=dict)
    """Of the services' configuration, as JSON: {"yarn.service.am-resource.memory": "512"}."""
    yarn_calls_per_s: float = Field(default=20.0, gt=0)
    """Calls of YARN, with bursts of twice as many."""
    yarn_look_s: float = Field(default=1.0, gt=0)
    """Between two looks at what has begun and ended."""
    heartbeat_s: float = Field(default=1.0, gt=0)
    silence_s: float = Field(default=20.0, gt=0)
    start_grace_s: float = Field(default=180.0, gt=0)
    warm_up_s: float = Field(default=90.0, gt=0)
    """Silence that is borne in the first `start_grace_s` of a process."""
    retry_ceiling_s: float = Field(default=60.0, gt=0)
    """The longest wait before a role that keeps dying is started again."""
    stall_s: float = Field(default=600.0, ge=0)
    """A worker that trains nothing for so long, though there is work, is replaced; 0: never."""
    drain_s: float = Field(default=30.0, gt=0)
    snapshot_timeout_s: float = Field(default=900.0, gt=0)
    hot_window_s: float = Field(default=15.0, ge=0)
    """Loads of parameter servers are compared over so long; 0: never."""
    hot_ratio: float = Field(default=2.0, gt=1)
    """So many times the load of its peers' median makes a parameter server hot, ..."""
    hot_wait_share: float = Field(default=0.3, ge=0)
    """... while calls to parameter servers take this part of a worker's step."""
    hot_pause_s: float = Field(default=30.0, ge=0)
    """After a decision on a hot parameter server the next one waits so long."""
    rollback_s: float = Field(default=5.0, ge=0)
    """A hot parameter server whose slots leave it too slowly is ended and restored elsewhere instead: what that takes
    beside reading the snapshot and training again what came after it."""
    move_slots: int = Field(default=512, ge=1, le=4096)
    """Most slots of one handoff: fewer make shorter pauses, and more of them."""
    replacement_s: float = Field(default=10.0, ge=0)
    """A parameter server that must go waits so long for its replacement; then the others take its slots."""
    straggler_window_s: float = Field(default=15.0, ge=0)
    """Over so long a worker's progress is compared with its peers'; 0: stragglers are left alone."""
    straggler_below: float = Field(default=0.5, ge=0, lt=1)
    """A worker below this share of the median of its peers gets smaller shards, then a backup worker."""
    straggler_above: float = Field(default=0.8, gt=0, le=1)
    """Above this share it counts as recovered."""
    straggler_cooldown_s: float = Field(default=10.0, ge=0)
    """Between two answers to the same worker's slowness."""
    straggler_batches: int = Field(default=4, ge=1)
    """Batches of the median peer in the window; fewer say nothing."""
    backup_workers: int = Field(default=1, ge=0)
    """Of one job, beyond the wanted count and within `roles.worker.max`."""
    backup_worth_s: float = Field(default=30.0, ge=0)
    """No backup worker for a job that ends sooner."""
    memory_factor: float = Field(default=1.5, gt=1)
    """A limit that was, or will be, too small is raised by it at least."""
    memory_ceiling_bytes: int = Field(default=0, ge=0)
    """Most memory of one process after raising; 0: what is free bounds it."""
    memory_horizon_s: float = Field(default=600.0, ge=0)
    """So far ahead the memory of parameter servers is forecast; 0: it is left alone until one is killed."""
    memory_lead_s: float = Field(default=60.0, ge=0)
    """So far ahead growth is feared to go on as it does now."""
    memory_settle_s: float = Field(default=20.0, ge=0)
    """After a parameter server's first rows its memory is forecast from what grows after this time."""
    memory_reserve: float = Field(default=0.1, ge=0, lt=1)
    """Share of a limit that growth may not use."""
    memory_cooldown_s: float = Field(default=30.0, ge=0)
    """Between two answers to growth."""
    deaths_to_quarantine: int = Field(default=3, ge=1)
    """Workers that died in a batch before it is set aside."""
    plan_interval_s: float = Field(default=INTERVAL_S, ge=0)
    """brain is asked so often for a better plan of each job; 0: never."""
    plan_settle_s: float = Field(default=10.0, ge=0)
    """So long after a change a job's speed is not measured yet."""
    plan_window_s: float = Field(default=20.0, gt=0)
    """Over so long it is measured, before and after a change."""
    plan_tolerance: float = Field(default=0.05, ge=0, lt=1)
    """A change that makes a job slower by more than this share is taken back."""
    plan_deadline_s: float = Field(default=1800.0, gt=0)
    """A change whose processes are not there after so long is taken back."""
    feed_window_s: float = Field(default=10.0, ge=0)
    """Over so long the buffers of data executors are seen, before brain is asked how many there should be; 0: never."""
    effect_s: float = Field(default=30.0, ge=0)
    """So long after a decision was carried out, the job's progress is compared with that of before."""
    leader_ttl_s: float = Field(default=6.0, ge=1.0)
    """The jobs of a jobmaster that has not renewed its lease for so long are taken by the others."""
    jobmaster_peer: str = ""
    """host:port by which the other jobmasters reach this one; empty: as it listens (RECMESH_RPC_ADDRESS), with the
    machine's name where that is all of its addresses."""
    max_live_jobs: int = Field(default=1000, gt=0)
    """Submissions beyond it are refused."""
    tensorboard_uri: str = ""
    """Folder for event files of jobs with `tracking.tensorboard`; empty: `tensorboard` in the data folder."""
    mlflow_uri: str = ""
    """Tracking URI of MLflow for jobs with `tracking.mlflow`; empty: they are refused. Its credentials are in the
    variables that MLflow reads (MLFLOW_TRACKING_TOKEN, ...)."""
    job_days: float = Field(default=0.0, ge=0)
    """After so long a job that ended is forgotten with its checkpoints, where its spec does not say when
    (`ttl_after_end_s`); its model and brain's history of it stay. 0: never. Jobs of objects end with their objects."""
    role_log_bytes: int = Field(default=64 << 20, ge=1 << 16)
    """Of each place of a job on this machine: beyond it the log is cut, and its last part kept beside it."""
    role_log_days: float = Field(default=30.0, gt=0)
    """Logs of jobs that ended are removed after so long, or with their job."""
    lease_ttl_s: float = Field(default=30.0, gt=0)
    """Of shards; workers renew with a third of it."""

    @property
    def limits(self) -> Limits:
        """What the rules use."""
        return Limits(
            heartbeat_s=self.heartbeat_s, silence_s=self.silence_s, start_grace_s=self.start_grace_s,
            warm_up_s=self.warm_up_s, retry_ceiling_s=self.retry_ceiling_s,
            stall_s=self.stall_s, drain_s=self.drain_s, snapshot_timeout_s=self.snapshot_timeout_s,
            hot_window_s=self.hot_window_s, hot_ratio=self.hot_ratio, hot_wait_share=self.hot_wait_share,
            hot_pause_s=self.hot_pause_s, rollback_s=self.rollback_s, move_slots=self.move_slots,
            replacement_s=self.replacement_s,
            straggler_window_s=self.straggler_window_s, straggler_below=self.straggler_below,
            straggler_above=self.straggler_above, straggler_cooldown_s=self.straggler_cooldown_s,
            straggler_batches=self.straggler_batches, backup_workers=self.backup_workers,
            backup_worth_s=self.backup_worth_s, memory_factor=self.memory_factor,
            memory_ceiling_bytes=self.memory_ceiling_bytes, memory_horizon_s=self.memory_horizon_s,
            memory_lead_s=self.memory_lead_s, memory_settle_s=self.memory_settle_s,
            memory_reserve=self.memory_reserve, memory_cooldown_s=self.memory_cooldown_s,
            deaths_to_quarantine=self.deaths_to_quarantine,
            plan_interval_s=self.plan_interval_s, plan_settle_s=self.plan_settle_s,
            plan_window_s=self.plan_window_s, plan_tolerance=self.plan_tolerance,
            plan_deadline_s=self.plan_deadline_s, feed_window_s=self.feed_window_s, effect_s=self.effect_s,
            keep_ended_s=self.job_days * 86_400,
        )

    @property
    def storage(self) -> str:
        """Root of code, models and checkpoints."""
        return self.storage_uri or str(self.data_dir.absolute() / "storage")
