"""Waiting until a job is as it was asked to be, with progress on the way."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from recmesh.runtime.errors import DeadlineExceeded, FailedPrecondition

if TYPE_CHECKING:
    from recmesh.client import Client, Job, Role

LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Step:
    """How far a job is on the way to what was asked for."""

    is_there: bool
    done: int = 0
    total: int = 0
    note: str = ""


Goal = Callable[["Job"], Step]


def until(
    mesh: "Client", job_id: str, goal: Goal, *, within_s: float, quiet: bool, look_s: float = LOOK_S
) -> "Job":
    """The job, once it is there. DeadlineExceeded says how far it came; FailedPrecondition: it never will be."""
    from recmesh.runtime.progress import Progress

    deadline = time.monotonic() + within_s
    job = mesh.job(job_id)
    with Progress(job.name, quiet=quiet, timed=False) as progress:
        while not (step := goal(job)).is_there:
            progress.update(step.done if step.total else None, total=step.total, note=step.note)
            if job.over:
                why = job.message or job.reason
                message = f"{job.name} is {job.phase}{f' ({why})' if why else ''}: what was waited for will never be"
                raise FailedPrecondition(message, reason="JOB_OVER")
            if time.monotonic() >= deadline:
                raise DeadlineExceeded(
                    f"{job.name} is not there after {within_s:g} s: {step.note}; it goes on with it, and `recmesh "
                    f"describe {job_id}` tells how far it is"
                )
            time.sleep(look_s)
            job = mesh.job(job_id)
    return job


def is_over(job: "Job") -> Step:
    """Nothing more will happen."""
    return Step(job.over, note=job.phase)


def is_suspended(job: "Job") -> Step:
    """Saved, and without processes."""
    living = sum(role.state != "exited" for role in job.roles)
    return Step(job.phase == "Suspended" and not living, note=f"{job.phase}, {living} processes live")


def is_training(job: "Job") -> Step:
    """It trains again."""
    return Step(job.phase == "Running" and any(_runs(role) for role in job.roles), note=job.phase)


def has_counts(counts: Mapping[str, int]) -> Goal:
    """So many processes of each role run, and the job is about nothing else."""

    def goal(job: "Job") -> Step:
        running = {name: sum(_runs(role) and role.role == name for role in job.roles) for name in counts}
        living = {name: sum(role.state != "exited" and role.role == name for role in job.roles) for name in counts}
        told = ", ".join(f"{running[name]} of {count} {name} run" for name, count in counts.items())
        there = job.phase == "Suspended" or (job.phase == "Running" and running == counts == living)
        done = sum(min(running[name], count) for name, count in counts.items())
        return Step(there or not counts, done, sum(counts.values()), f"{job.phase}, {told}")

    return goal


def has_size(role: str, *, cpu: str | None, memory: str | None) -> Goal:
    """Every process of the role that lives has the limits."""
    from recmesh.spec.quantity import cpu_cores as cores
    from recmesh.spec.quantity import memory_bytes

    wanted_cores = None if cpu is None else float(cores(cpu))
    wanted_bytes = None if memory is None else int(memory_bytes(memory))

    def fits(each: "Role") -> bool:
        return (wanted_cores is None or abs(each.cpu_limit - wanted_cores) < 1e-6) and (
            wanted_bytes is None or each.memory_limit_bytes == wanted_bytes
        )

    def goal(job: "Job") -> Step:
        living = [each for each in job.roles if each.role == role and each.state != "exited"]
        done = sum(fits(each) and _runs(each) for each in living)
        there = bool(living) and done == len(living) == job.wanted.get(role, len(living)) and job.phase == "Running"
        return Step(there, done, len(living), f"{job.phase}, {done} of {len(living)} {role} have it")

    return goal


def _runs(role: "Role") -> bool:
    return role.state == "running"
