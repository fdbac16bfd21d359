"""Who makes room when not all can be in time: lower priorities first, then models above their share."""

import math
from collections.abc import Callable, Iterable

from recmesh.serving.admission.domain.waiting import Waiting

_MEMORY_S = 1.0
"""What a model was granted counts for about so long."""
_CLEARLY = 2.0
"""A model makes room for one that has had less than half as much for its weight; without such a distance two equal
ones would push each other out by turns."""
_MOST_MODELS = 1024


class Usage:
    """Bytes that each model was granted lately (by half after ln 2 · 1 s) or has waiting."""

    def __init__(self, weight: Callable[[str], float]) -> None:
        self._weight = weight
        self._granted: dict[str, tuple[float, float]] = {}
        self._waiting: dict[str, int] = {}

    def waits(self, model: str, size_bytes: int) -> None:
        """So many bytes more wait; fewer if negative."""
        count = self._waiting.get(model, 0) + size_bytes
        if count:
            self._waiting[model] = count
        else:
            self._waiting.pop(model, None)

    def granted(self, model: str, size_bytes: int, now: float) -> None:
        """So many bytes are on their way."""
        self._granted[model] = self._recent(model, now) + size_bytes, now
        if len(self._granted) > _MOST_MODELS:
            del self._granted[min(self._granted, key=lambda each: self._recent(each, now))]

    def of(self, model: str, now: float) -> float:
        """Bytes for its weight."""
        return (self._recent(model, now) + self._waiting.get(model, 0)) / self._weight(model)

    def _recent(self, model: str, now: float) -> float:
        granted, at = self._granted.get(model, (0.0, now))
        return granted * math.exp((at - now) / _MEMORY_S)


def outranked(item: Waiting, among: Iterable[Waiting]) -> Waiting | None:
    """Who makes room for it by priority: of the lowest one, who came last."""
    lower = [each for each in among if each.ask.priority > item.ask.priority]
    return max(lower, key=lambda each: (each.ask.priority, each.since), default=None)


def above_share(item: Waiting, among: Iterable[Waiting], usage: Usage, now: float) -> Waiting | None:
    """Who makes room for it among its equals in priority: of the model furthest above its share, who came last."""
    peers = [
        each for each in among
        if each.ask.priority == item.ask.priority and each.ask.model != item.ask.model
    ]
    if not peers:
        return None
    used = {model: usage.of(model, now) for model in {each.ask.model for each in peers}}
    most = max(peers, key=lambda each: (used[each.ask.model], each.since))
    return most if used[most.ask.model] > _CLEARLY * usage.of(item.ask.model, now) else None
