"""Calls that outlast outages: the same call again, with backoff, until it answers or is no longer wanted."""

import logging
import random
from collections.abc import Callable
from threading import Event
from typing import TypeVar

from recmesh.runtime.errors import (
    AlreadyExists,
    InvalidArgument,
    MeshError,
    PermissionDenied,
    Unauthenticated,
)

T = TypeVar("T")
_log = logging.getLogger(__name__)

FIRST_WAIT_S = 0.05
LONGEST_WAIT_S = 2.0

DEFINITE = (InvalidArgument, AlreadyExists, Unauthenticated, PermissionDenied)
ANSWERS = frozenset({"STALE_GEN", "WRONG_MAP"})
"""Refusals that the same request would meet again, as DEFINITE errors do.

All others may pass: a service that restarts, a server that waits for its Restore, a run that is being opened.
Should they never, jobmaster sees no progress and ends this process.
"""


class NoLongerWanted(Exception):
    """A way out, not an error: the caller's `gone` was set while the call could not be answered."""


def patiently(
    call: Callable[[], T],
    *,
    what: str,
    gone: Event,
    definite: tuple[type[MeshError], ...] = DEFINITE,
    wait_s: float = FIRST_WAIT_S,
) -> T:
    """The call's answer, however long servers are away; NoLongerWanted once `gone` is set."""
    attempt = 0
    while True:
        if gone.is_set():
            raise NoLongerWanted(what)
        try:
            return call()
        except MeshError as error:
            if error.reason in ANSWERS or isinstance(error, definite):
                raise
            attempt += 1
            if attempt in (3, 10) or attempt % 60 == 0:
                _log.warning("%s: attempt %d failed: %s", what, attempt, error)
        # Jitter is for many workers that lost the same server; it decides nothing but the moment.
        gone.wait(min(LONGEST_WAIT_S, wait_s * 2 ** min(attempt - 1, 10)) * random.uniform(0.5, 1.0))
