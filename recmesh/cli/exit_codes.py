"""Exit codes of the `recmesh` command."""

from collections.abc import Mapping
from enum import IntEnum

from recmesh.runtime.errors import (
    CallerError,
    InvalidArgument,
    MeshError,
    NotFound,
    Unavailable,
)


class ExitCode(IntEnum):
    """What a script can tell apart."""

    DONE = 0
    FAILED = 1
    """The mesh or the machine is at fault."""
    USAGE = 2
    """Wrong arguments, or a wrong specification."""
    UNREACHABLE = 3
    """The mesh does not run, or does not answer."""
    NOT_FOUND = 4
    REFUSED = 5
    """The state or a limit forbids it: already running elsewhere, no API key, not allowed, taken."""
    JOB_FAILED = 6
    """The job that was waited for did not succeed."""
    INTERRUPTED = 130
    """By Ctrl-C or SIGTERM."""


MEANING: Mapping[ExitCode, str] = {
    ExitCode.DONE: "done", ExitCode.FAILED: "failed: the mesh or the machine is at fault",
    ExitCode.USAGE: "wrong usage or input", ExitCode.UNREACHABLE: "the mesh does not run, or does not answer",
    ExitCode.NOT_FOUND: "not found", ExitCode.REFUSED: "refused: the state, a limit or a missing right forbids it",
    ExitCode.JOB_FAILED: "the job that was waited for did not succeed", ExitCode.INTERRUPTED: "interrupted",
}  # fmt: skip
"""In words, for the help and the reference."""


def summary() -> str:
    """All codes, in a line."""
    return "; ".join(f"{code.value} {text}" for code, text in MEANING.items())


def exit_code(error: MeshError) -> ExitCode:
    """The code for an error."""
    if isinstance(error, InvalidArgument):
        return ExitCode.USAGE
    if isinstance(error, NotFound):
        return ExitCode.NOT_FOUND
    if isinstance(error, Unavailable):
        return ExitCode.FAILED if error.reason == "NOT_STARTING" else ExitCode.UNREACHABLE
    if isinstance(error, CallerError):
        return ExitCode.REFUSED
    return ExitCode.FAILED
