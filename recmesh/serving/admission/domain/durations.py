"""How long an HN computes for each model: a high quantile of what was measured last."""

from collections import OrderedDict, deque

_SAMPLES = 64
_QUANTILE = 0.9
_MOST_MODELS = 1024
"""Those heard of last."""


class Durations:
    """From the arrival of a message until its answer is ready, in seconds."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, deque[float]] = OrderedDict()
        self._expected: dict[str, float] = {}

    def see(self, model: str, seconds: float) -> None:
        """It took so long."""
        seen = self._seen.setdefault(model, deque(maxlen=_SAMPLES))
        self._seen.move_to_end(model)
        seen.append(seconds)
        ordered = sorted(seen)
        self._expected[model] = ordered[min(len(ordered) - 1, int(_QUANTILE * len(ordered)))]
        if len(self._seen) > _MOST_MODELS:
            oldest, _ = self._seen.popitem(last=False)
            del self._expected[oldest]

    def expected_s(self, model: str) -> float:
        """0 while nothing is known."""
        return self._expected.get(model, 0.0)
