"""Before a mesh goes down: a snapshot of each job that trains, so that little is trained again after the next `up`."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import TYPE_CHECKING

from recmesh.runtime.errors import MeshError

if TYPE_CHECKING:
    from recmesh.client import Client

MOST_AT_ONCE = 8
TRAINING = ("Running", "Scaling")


def save_jobs(mesh: "Client", *, within_s: float, tell: Callable[[str], None]) -> None:
    """Asks for the snapshots and waits for them, so long and no longer. What cannot be had is told, never raised."""
    deadline = monotonic() + within_s
    try:
        training = [job for phase in TRAINING for job in mesh.jobs(phase=phase, limit=1000).jobs]
    except MeshError as error:
        tell(f"No snapshots: {error.message}")
        return

    def save(job_id: str) -> str:
        left_s = deadline - monotonic()
        if left_s <= 0:
            return f"{job_id}: no time left for a snapshot; it goes on from its last one"
        try:
            number = mesh.checkpoint(job_id, timeout_s=left_s)
        except MeshError as error:
            return f"{job_id}: no snapshot, it goes on from its last one ({error.message})"
        return f"{job_id}: snapshot {number}"

    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        for said in pool.map(save, [job.job_id for job in training]):
            tell(said)
