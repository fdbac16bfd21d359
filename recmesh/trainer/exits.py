"""How a role's process ends, and why."""

import errno

from recmesh.runtime.errors import CallerError, InvalidArgument, MeshFault

DONE = 0
MISTAKE = 64
"""The user's: the same job would fail again."""
BUG = 70
RETRY = 75
"""Another process of the role may do better."""

PROGRAMMING_ERRORS = (
    NameError, AttributeError, TypeError, ImportError, SyntaxError, NotImplementedError, KeyError,
)
"""What data can hardly provoke."""
DATA_CHANGED = "FILE_CHANGED"
"""A data file is gone, or no longer what was indexed: another try finds it no better."""
MACHINE_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""A full disk in the middle of the user's code is not the user's mistake: another try may find room."""


class UserMistake(InvalidArgument):
    """The user's code or specification can't work as it is."""


def exit_code_of(error: BaseException, *, in_user_code: bool, stepped: bool) -> int:
    """Which code tells jobmaster what to do about an error.

    An error of the user's code before the first step, or one that no data provokes, is a mistake; a worker
    that dies in the middle of a batch may have met a poisonous one, which is jobmaster's to judge.
    """
    if isinstance(error, OSError) and error.errno in MACHINE_ERRORS:
        return BUG
    if isinstance(error, CallerError) and error.reason not in ("STALE_GEN", "NO_GENERATION", "WRONG_MAP"):
        return MISTAKE
    if isinstance(error, MeshFault):   # whichever code it came through
        return MISTAKE if error.reason == DATA_CHANGED else BUG
    if in_user_code and (not stepped or isinstance(error, PROGRAMMING_ERRORS)):
        return MISTAKE
    return BUG
