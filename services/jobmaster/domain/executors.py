"""Which data executors may be asked for rows, by the processes of a job. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from services.jobmaster.domain.job import JobStatus, RoleKey
from services.jobmaster.domain.vitals import Beat


@dataclass(frozen=True, slots=True)
class Executor:
    """A data executor that runs, as it was last heard."""

    address: str
    incarnation: str
    accepting: bool = True
    """Tasks of other executors."""
    queued: int = 0


def executors_of(status: JobStatus, beats: Mapping[RoleKey, Beat]) -> list[Executor]:
    """Those of one job that have said where they serve and were not asked to go, by number."""
    found = []
    for role in sorted(status.live("data"), key=lambda role: role.index):
        if role.stage != "running" or not role.address:
            continue
        beat = beats.get(role.key)
        serving = beat.serving if beat is not None and beat.incarnation == role.incarnation else None
        accepting, queued = (serving.accepting, serving.queued) if serving is not None else (True, 0)
        found.append(Executor(role.address, role.incarnation, accepting, queued))
    return found
