"""Times that the rules use, in one place, each with its reason."""

from pydantic import BaseModel, ConfigDict

from recmesh.plugins.planning import INTERVAL_S


class Limits(BaseModel):
    """Set by the environment through config; tests set their own."""

    model_config = ConfigDict(frozen=True)
    heartbeat_s: float = 1.0
    silence_s: float = 20.0
    """A process that says nothing for so long is killed and replaced. A heartbeat thread may be held up by
    the framework's compilation on a busy machine, for seconds."""
    start_grace_s: float = 180.0
    """Until a process has registered: importing a framework takes 10 s on an idle machine."""
    warm_up_s: float = 90.0
    """Silence that is borne in the first `start_grace_s` after the registration: while a framework is imported
    and kernels are compiled, threads may not run for tens of seconds on a crowded machine."""
    stall_s: float = 600.0
    """A worker that lives and trains nothing for so long, though there is work, is replaced; 0: never."""
    keep_ended_s: float = 0.0
    """A job that ended is forgotten after so long, where its spec does not say when; 0: never."""
    finisher_exit_s: float = 5.0
    """A finisher that has reported ends by itself; after this it is ended."""
    drain_s: float = 30.0
    """A draining worker finishes its batches in flight; then it gets SIGTERM and SIGKILL."""
    terminate_grace_s: float = 5.0
    retry_base_s: float = 1.0
    retry_ceiling_s: float = 60.0
    retry_reset_s: float = 120.0
    """A process that lived so long begins again with no failures in a row."""
    snapshot_timeout_s: float = 900.0
    linger_s: float = 3.0
    """A parameter server that has left tells workers with an old map so for so long; heartbeats tell them, too."""
    copy_timeout_s: float = 600.0
    """A copy of slots that has not caught up with training after so long is given up, and begun again later."""
    freeze_s: float = 3.0
    """Slots wait for their new server so long; then it is asked to promise that it never installs them."""
    replacement_s: float = 10.0
    """A parameter server that must go waits so long for its replacement; then the others take its slots."""
    hot_window_s: float = 15.0
    """Loads of parameter servers are compared over so long; 0: never."""
    hot_ratio: float = 2.0
    """A parameter server is hot with so many times the load of its peers' median, ..."""
    hot_wait_share: float = 0.3
    """... while calls to parameter servers take this part of a worker's step."""
    hot_pause_s: float = 30.0
    """After a decision on a hot parameter server the next one waits so long."""
    rollback_s: float = 5.0
    """What a rollback takes beside reading the snapshot and training again what came after it."""
    move_slots: int = 512
    """Most slots of one handoff: the more there are, the more changes wait for its last moment."""
    final_retry_s: float = 0.5
    """Between a closing snapshot that was not full and the next one."""
    deaths_to_quarantine: int = 3
    """Workers that died in a batch before it is set aside."""
    straggler_window_s: float = 15.0
    """Over so long a worker's progress is compared with its peers'; 0: stragglers are left alone."""
    straggler_below: float = 0.5
    """A worker below this share of the median of its peers is slow."""
    straggler_above: float = 0.8
    """Above this share it is no longer."""
    straggler_cooldown_s: float = 10.0
    """Between two answers to the same worker's slowness: the first one needs time to show."""
    straggler_batches: int = 4
    """The median peer must have trained so many in the window: fewer say nothing."""
    backup_workers: int = 1
    """Of one job, beyond the wanted count and within `roles.worker.max`."""
    backup_worth_s: float = 30.0
    """No backup for a job that ends sooner: a process needs time to start."""
    memory_factor: float = 1.5
    """By which a limit is raised, at least."""
    memory_ceiling_bytes: int = 0
    """Of one process; 0: what is free bounds it."""
    memory_reserve: float = 0.1
    """Share of a limit that growth may not use: snapshots copy what training touches meanwhile."""
    memory_horizon_s: float = 600.0
    """So far ahead the saturating forecast is believed (at most to the job's end); 0: memory is left alone."""
    memory_lead_s: float = 60.0
    """So far ahead growth is feared to go on as it does now: an answer needs time."""
    memory_settle_s: float = 20.0
    """Growth in so long after a parameter server's first rows is its start: imports, compiled kernels, first steps."""
    memory_cooldown_s: float = 30.0
    """Between two answers to growth: the first one needs time to show."""
    plan_interval_s: float = INTERVAL_S
    """brain is asked so often for a better plan of a job that trains steadily; 0: never."""
    plan_settle_s: float = 10.0
    """So long after the last change a job's speed is not measured: frameworks compile, caches fill."""
    plan_window_s: float = 20.0
    """Over so long it is measured, before a change and after."""
    plan_tolerance: float = 0.05
    """Share of the speed before (or of the speed that a smaller plan promised) that a change may fall short of."""
    plan_deadline_s: float = 1800.0
    """What a change asks for must be there after so long, else it is taken back."""
    feed_window_s: float = 10.0
    """Over so long the buffers of data executors are seen, before brain is asked how many there should be; 0: never."""
    feed_deadline_s: float = 300.0
    """Data executors that are wanted and not all there after so long: as many as there are must do."""
    feed_rest_s: float = 600.0
    """After that, before more are asked for again."""
    effect_s: float = 30.0
    """So long after a decision was carried out, the job's progress is compared with that of before."""

    def patience_s(self, age_s: float) -> float:
        """How long a process of this age (since its registration) may be silent."""
        return max(self.silence_s, self.warm_up_s) if age_s <= self.start_grace_s else self.silence_s
