"""The state machine of a job: one literal table, which also draws docs/reference/job-states.md.

    python -m services.jobmaster.domain.phase > docs/reference/job-states.md
"""

from collections.abc import Mapping
from enum import StrEnum


class Phase(StrEnum):
    """Where a job is in its life."""

    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    SCALING = "Scaling"
    RECOVERING = "Recovering"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    STOPPED = "Stopped"


MEANING: Mapping[Phase, str] = {
    Phase.PENDING: "accepted and stored; nothing runs yet",
    Phase.STARTING: "its processes start, and the first generation opens",
    Phase.RUNNING: "batches are trained",
    Phase.SCALING: "batches are trained while workers or parameter servers come or go, or slots move",
    Phase.RECOVERING: "a parameter server was lost; the last committed snapshot is being restored",
    Phase.SUSPENDED: "its processes are gone, its snapshots are kept",
    Phase.SUCCEEDED: "one committed snapshot has every batch in its ledgers; the model is exported from it",
    Phase.FAILED: "it cannot go on; reason and message say why",
    Phase.STOPPED: "somebody asked it to stop",
}

TRANSITIONS: Mapping[Phase, Mapping[Phase, str]] = {
    Phase.PENDING: {
        Phase.STARTING: "a plan was made",
        Phase.SUSPENDED: "suspend",
        Phase.FAILED: "it cannot start",
        Phase.STOPPED: "stop",
    },
    Phase.STARTING: {
        Phase.RUNNING: "the first generation is open and a worker is there",
        Phase.RECOVERING: "a parameter server was lost",
        Phase.SUSPENDED: "suspend",
        Phase.FAILED: "a limit was passed, or the user's mistake",
        Phase.STOPPED: "stop",
    },
    Phase.RUNNING: {
        Phase.SCALING: "another number of workers is wanted, or another placement of slots",
        Phase.RECOVERING: "a parameter server was lost",
        Phase.SUSPENDED: "suspend",
        Phase.SUCCEEDED: "the ledgers are full and the model is registered",
        Phase.FAILED: "a limit was passed, or the user's mistake",
        Phase.STOPPED: "stop",
    },
    Phase.SCALING: {
        Phase.RUNNING: "the wanted workers are there, and the slots where they belong",
        Phase.RECOVERING: "a parameter server was lost",
        Phase.SUSPENDED: "suspend",
        Phase.FAILED: "a limit was passed, or the user's mistake",
        Phase.STOPPED: "stop",
    },
    Phase.RECOVERING: {
        Phase.RUNNING: "a new generation is open and a worker is there",
        Phase.SUSPENDED: "suspend",
        Phase.FAILED: "a limit was passed, or the user's mistake",
        Phase.STOPPED: "stop",
    },
    Phase.SUSPENDED: {
        Phase.PENDING: "resume",
        Phase.FAILED: "its snapshots are lost",
        Phase.STOPPED: "stop",
    },
    Phase.SUCCEEDED: {},
    Phase.FAILED: {},
    Phase.STOPPED: {},
}

ENDED = frozenset(phase for phase, following in TRANSITIONS.items() if not following)


class IllegalTransition(ValueError):
    """A bug in jobmaster: the table has no such edge."""


def check(source: Phase, target: Phase) -> None:
    """IllegalTransition unless the table has the edge."""
    if target not in TRANSITIONS[source]:
        raise IllegalTransition(f"no transition from {source} to {target}")


def mermaid() -> str:
    """The table as a mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> Pending: submit"]
    for source, following in TRANSITIONS.items():
        lines += [f"    {source} --> {target}: {why}" for target, why in following.items()]
        if not following:
            lines.append(f"    {source} --> [*]")
    return "\n".join(lines)


def page() -> str:
    """The reference page, whole."""
    rows = "\n".join(f"| {phase} | {meaning} |" for phase, meaning in MEANING.items())
    return (
        "# States of a job\n\n"
        "Generated from services/jobmaster/domain/phase.py by"
        " `python -m services.jobmaster.domain.phase > docs/reference/job-states.md`; a test holds the two"
        " together.\n\n"
        f"```mermaid\n{mermaid()}\n```\n\n"
        f"| phase | meaning |\n|---|---|\n{rows}\n\n"
        "A worker that dies and is replaced leaves the phase as it is: training goes on meanwhile. So does a parameter"
        " server that owns no slot.\n"
    )


if __name__ == "__main__":
    print(page(), end="")
