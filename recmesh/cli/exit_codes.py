"""Exit codes of the `recmesh` command."""

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
