"""Which of several HNs a CN asks."""

from collections.abc import Sequence
from typing import Protocol

SMOOTHING = 0.2
"""Weight of the newest latency."""


class Choice(Protocol):
    """Called from several threads under one lock of the caller."""

    def choose(self, connected: Sequence[str], in_flight: Sequence[int]) -> str:
        """One of the HNs that are connected (at least one), given the calls that each has not answered."""
        ...

    def observed(self, hn: str, seconds: float) -> None:
        """An HN answered after so long."""
        ...


class LeastExpected:
    """The HN that is expected to answer first: its recent latency, for each call before this one and for itself."""

    def __init__(self) -> None:
        self._latency: dict[str, float] = {}

    def choose(self, connected: Sequence[str], in_flight: Sequence[int]) -> str:
        """Those that have never answered are tried first."""
        return min(
            zip(connected, in_flight, strict=True),
            key=lambda item: (self._latency.get(item[0], 0.0) * (item[1] + 1), item[1]),
        )[0]

    def observed(self, hn: str, seconds: float) -> None:
        """A moving mean."""
        before = self._latency.get(hn, seconds)
        self._latency[hn] = before + SMOOTHING * (seconds - before)
