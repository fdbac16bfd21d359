"""What a shell is told while a command is typed. A mesh that does not answer completes nothing."""

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from recmesh.client import Client

Found = TypeVar("Found")
PATIENCE_S = 2.0
PHASES = ("Pending", "Starting", "Running", "Scaling", "Recovering", "Suspended", "Succeeded", "Failed", "Stopped")
ROLES = ("ps", "worker", "data", "evaluator", "finisher")
SCALED = ("ps", "worker", "data", "evaluator")


def contexts(incomplete: str) -> list[str]:
    """Names of contexts."""
    from recmesh.client.contexts import Contexts
    from recmesh.runtime.errors import MeshError

    try:
        return _begun(Contexts.read(os.environ).known, incomplete)
    except MeshError:
        return []


def jobs(incomplete: str) -> list[str]:
    """Names of jobs, and ids where an id is begun."""
    found = _asked(lambda mesh: [(job.name, job.job_id) for job in mesh.jobs(limit=200).jobs])
    ids = [job_id for _, job_id in found if incomplete]
    return _begun([name for name, _ in found] + ids, incomplete)


def logged(incomplete: str) -> list[str]:
    """What has a log: processes of this machine's mesh, and jobs."""
    from recmesh.cli.mesh import state
    from recmesh.cli.options import home_of
    from recmesh.runtime.errors import MeshError

    try:
        here = [*state.load(home_of(None).mesh_file).components, "supervisor"]
    except MeshError:
        here = []
    return _begun(here, incomplete) + jobs(incomplete)


def models(incomplete: str) -> list[str]:
    """Names of models."""
    return _begun(_asked(lambda mesh: [model.name for model in mesh.models()]), incomplete)


def webhooks(incomplete: str) -> list[str]:
    """Names of webhooks."""
    return _begun(_asked(lambda mesh: [str(each["name"]) for each in mesh.webhooks()]), incomplete)


def series(incomplete: str) -> list[str]:
    """Series of rates."""
    return _begun(_asked(lambda mesh: [str(each["series"]) for each in mesh.forecasts()["series"]]), incomplete)


def phases(incomplete: str) -> list[str]:
    """Phases of a job."""
    return _begun(PHASES, incomplete)


def roles(incomplete: str) -> list[str]:
    """Roles of a job's processes."""
    return _begun(ROLES, incomplete)


def counts(incomplete: str) -> list[str]:
    """Roles whose count can be pinned, with the sign after them."""
    role, sign, _ = incomplete.partition("=")
    return [f"{role}=auto"] if sign else _begun([f"{each}=" for each in SCALED], incomplete)


def event_types(incomplete: str) -> list[str]:
    """Types of events."""
    from recmesh.cli.narration import known_types

    return _begun(known_types(), incomplete)


def _asked(ask: "Callable[[Client], list[Found]]") -> list[Found]:
    """The mesh's answer; nothing when it has none, or takes its time."""
    from recmesh.cli.connect import connect
    from recmesh.runtime.errors import MeshError

    try:
        with connect(None, timeout_s=PATIENCE_S) as mesh:
            return ask(mesh)
    except (MeshError, LookupError):
        return []


def _begun(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]
