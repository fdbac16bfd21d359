"""What a JobMetrics object tells of a job: how fast it trains, how well, and what its processes use."""

import math
from collections.abc import Mapping
from typing import Any

from recmesh.crd.kinds import JobMetricsStatus, RoleMetrics
from recmesh.crd.objects import API_VERSION
from recmesh.crd.telling import moment, size
from services.jobmaster.domain.job import JobStatus, ObjectRef, RoleKey
from services.jobmaster.domain.vitals import Beat, weighted

MOST_ROLES = 4096
_TIMES = ("data_s", "pull_s", "compute_s", "push_s")


def thing_of(ref: ObjectRef) -> dict[str, Any]:
    """The object beside a TrainingJob, with which it goes."""
    owner = {
        "apiVersion": API_VERSION, "kind": "TrainingJob", "name": ref.name, "uid": ref.uid, "controller": True,
        "blockOwnerDeletion": False,
    }
    return {
        "apiVersion": API_VERSION, "kind": "JobMetrics",
        "metadata": {"name": ref.name, "namespace": ref.namespace, "ownerReferences": [owner]},
        "spec": {"job": ref.name},
    }


def measured(status: JobStatus, beats: Mapping[RoleKey, Beat], *, now: float) -> dict[str, Any]:
    """The object's status. `beats`: the newest of each place; those of places whose process has ended are left out."""
    live = {role.key for role in status.roles if role.is_live}
    heard = {key: beat for key, beat in sorted(beats.items()) if key in live}
    workers = [beat for (role, _), beat in heard.items() if role == "worker"]
    told: dict[str, Any] = {
        "observed": moment(now), "phase": status.phase, "samples": status.samples,
        "samples_per_s": _rounded(status.samples_per_s),
        "loss": _maybe(weighted(workers, "loss")), "auc": _maybe(weighted(workers, "auc")),
        "metrics": {name: _rounded(value) for name, value in status.metrics.items() if math.isfinite(value)},
    }
    if status.partitions and not status.has_ended:
        told |= {"lag_s": _rounded(status.lag_s), "lag_messages": status.lag_messages}
    memory = sum(beat.memory_bytes for beat in heard.values())
    told |= {
        "cpu": _rounded(sum(beat.cpu_cores for beat in heard.values())), "memory_bytes": memory, "memory": size(memory),
        "roles": [_role(key, beat) for key, beat in heard.items()][:MOST_ROLES],
    }
    return JobMetricsStatus.model_validate(told).model_dump(exclude_none=True)


def is_same(told: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Nothing but the time is another one."""
    return {**told, "observed": ""} == {**before, "observed": ""}


def _role(key: RoleKey, beat: Beat) -> RoleMetrics:
    role, index = key
    made: dict[str, Any] = {"role": role, "index": index, "cpu": _rounded(beat.cpu_cores),
                            "memory_bytes": beat.memory_bytes}
    if role == "worker":
        made |= {"samples_per_s": _rounded(beat.samples_per_s), "step_s": _rounded(beat.step.total_s)}
        made |= {name: _rounded(getattr(beat.step, name)) for name in _TIMES}
    elif role == "ps":
        made["rows"] = beat.rows
    return RoleMetrics.model_validate(made)


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _maybe(value: float | None) -> float | None:
    """None, too, for what no JSON has: the loss of a job that diverges may be NaN."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")
