"""A token bucket: so many calls per second, and a burst before that."""


class Bucket:
    """Callers take a token each, in their order, and wait for those that are not there yet. Time is an argument."""

    def __init__(self, *, per_s: float, burst: float) -> None:
        """Both above 0."""
        if per_s <= 0 or burst < 1:
            raise ValueError("a bucket needs a rate above 0 and room for one token")
        self._per_s, self._burst = per_s, burst
        self._tokens, self._at = burst, float("-inf")

    def take(self, now_s: float, *, patience_s: float) -> float | None:
        """Seconds to wait before the call; None: it would have to wait longer than it can, and nothing is taken."""
        if now_s > self._at:
            gained = (now_s - self._at) * self._per_s if self._at > float("-inf") else self._burst
            self._tokens, self._at = min(self._burst, self._tokens + gained), now_s
        wait_s = max(0.0, (1.0 - self._tokens) / self._per_s)
        if wait_s > patience_s:
            return None
        self._tokens -= 1.0
        return wait_s
