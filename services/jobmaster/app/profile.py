"""Figures of a running job: into its status, to brain, and to whoever listens on the bus."""

from recmesh.runtime.errors import MeshError
from recmesh.runtime.telemetry import get_logger
from services.jobmaster.app.looking import look_every
from services.jobmaster.app.memory import limit_of
from services.jobmaster.app.run import Run
from services.jobmaster.domain import plan as plans
from services.jobmaster.domain.facts import namespace_of
from services.jobmaster.domain.phase import Phase
from services.jobmaster.domain.vitals import Beat, mean_step, weighted
from services.jobmaster.peers.planning import JobProfile, RoleUse

logger = get_logger(__name__)

TELL_S = 5.0
TRAINING = (Phase.RUNNING, Phase.SCALING)


class Profiler:
    """Refreshes the status from heartbeats, and tells of it every few seconds."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def refresh(self) -> None:
        """Loss and AUC of the last windows of all workers, into the status."""
        run = self._run
        beats = run.vitals.of("worker")
        metrics = dict(run.status.metrics)
        for name in ("loss", "auc"):
            value = weighted(beats, name)
            if value is not None:
                metrics[name] = value
        if metrics != run.status.metrics and run.status.closing is None:
            run.update(metrics=metrics)

    async def tell(self) -> None:
        """Runs until it is cancelled."""
        await look_every(self._run, TELL_S, self._look, at="figures to tell")

    async def _look(self) -> None:
        run = self._run
        if run.status.phase not in TRAINING or run.record.phase != "open":
            return
        self.refresh()
        status, now = run.status, run.context.clock.now()
        run.telling.progressed(
            samples=status.samples, total=status.total, samples_per_s=status.samples_per_s,
            loss=status.metrics.get("loss"), auc=status.metrics.get("auc"),
        )
        run.telling.rate(status.samples_per_s, at=now, step_s=TELL_S)
        for minute in run.minutes.close(now):
            run.telling.measured(minute)
        try:
            await run.context.peers.brain.observe(self._profile(now))
        except MeshError as error:
            logger.info("job %s: brain takes no profile: %s", run.job_id, error.message)

    def _profile(self, now: float) -> JobProfile:
        run = self._run
        workers, servers, status = run.vitals.of("worker"), run.vitals.of("ps"), run.status
        step, steady = mean_step(workers), run.steady.per_s(limits=run.context.limits)
        if run.spec.scaling is not None:
            steady = None       # it is what comes in, not what the workers can do: that is told with each `Schedule`
        sizes = {role: plans.size(run.spec, run.job.intent, status.plan, role) for role in ("worker", "ps")}

        def mean(values: list[float]) -> float:
            return sum(values) / len(values) if values else 0.0

        return JobProfile(
            job_id=run.job_id, at=now, workers=len(workers), ps=len(servers),
            worker_cpu=mean([beat.cpu_cores for beat in workers]),
            ps_cpu=mean([beat.cpu_cores for beat in servers]),
            batch_size=run.spec.training.batch_size,
            samples_per_s=status.samples_per_s if steady is None else steady, data_s=step.data_s,
            pull_s=step.pull_s, compute_s=step.compute_s, push_s=step.push_s,
            ps_busy_share=mean([beat.busy_share for beat in servers]),
            ps_memory_bytes=max((beat.memory_bytes for beat in servers), default=0),
            rows=sum(beat.rows for beat in servers), samples=status.samples,
            remaining=status.remaining,
            worker_cpu_limit=sizes["worker"].cpu, ps_cpu_limit=sizes["ps"].cpu,
            hardware=(sizes["worker"].gpu_kind or "gpu") if sizes["worker"].gpu else "cpu",
            is_synchronous=run.spec.training.sync is not None, is_steady=steady is not None,
            roles=tuple(self._use(role) for role in plans.planned_roles(run.spec) if status.live(role)),
            owner=run.spec.owner, namespace=namespace_of(run.spec, run.job),
        )

    def _use(self, role: str) -> RoleUse:
        run, beats, live = self._run, self._run.vitals.of(role), self._run.status.live(role)
        size = plans.size(run.spec, run.job.intent, run.status.plan, role)
        return RoleUse(
            role, size.model_copy(update={"replicas": len(live), "memory_bytes": limit_of(run, role)}),
            cpu_max=max((beat.cpu_cores for beat in beats), default=0.0),
            memory_bytes=max(map(_with_full_buffer, beats), default=0),
        )


def _with_full_buffer(beat: Beat) -> int:
    """Bytes that the process will use: a data executor's buffer may be empty now."""
    serving = beat.serving
    return beat.memory_bytes + (max(0, serving.limit_bytes - serving.held_bytes) if serving is not None else 0)
