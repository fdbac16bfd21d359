"""Letting callers in: who they are, what they may, how often."""

from recmesh.runtime.clock import Clock
from services.gateway.domain import callers
from services.gateway.domain.callers import Caller, TokenBucket
from services.gateway.store.credentials import Credentials

MAX_BUCKETS = 10_000
"""Of tokens' subjects, which others name; the one unused for longest goes, and begins anew with a full bucket."""


class Access:
    """Rates are of one gateway process."""

    def __init__(self, credentials: Credentials, *, clock: Clock) -> None:
        self._credentials = credentials
        self._clock = clock
        self._buckets: dict[tuple[str, callers.Rate], TokenBucket] = {}

    def caller(self, header: str) -> Caller:
        """Whose credential that is; Unauthenticated when it is nobody's."""
        return self._credentials.caller(header)

    def spend(self, caller: Caller) -> None:
        """Count one inference; ResourceExhausted with `retry_after_s` for a caller above its rate."""
        if caller.rate is None:
            return
        key = (caller.name, caller.rate)
        bucket = self._buckets.pop(key, None) or TokenBucket(caller.rate)
        self._buckets[key] = bucket
        if len(self._buckets) > MAX_BUCKETS:
            del self._buckets[next(iter(self._buckets))]
        wait_s = bucket.take(self._clock.monotonic())
        if wait_s:
            raise callers.too_often(caller, wait_s)
