"""Loss and AUC by the minute, test-then-train: each batch is predicted before it is trained, so every prediction is of
samples that the model has not seen. Batches that a rollback trains again are counted again."""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.jobmaster.domain.vitals import Beat

MINUTE_S = 60.0
LATE_S = 5.0
"""Heartbeats of a minute may come so long after it."""
KEPT = 1440
LEAST_EACH = 10
"""Positives, and negatives, of a minute; fewer give no AUC."""


@dataclass(frozen=True, slots=True)
class Minute:
    """What was trained in it."""

    at: float
    """Its begin."""
    samples: int
    loss: float
    auc: dict[str, float]
    """By label; those of which too little came are left out."""


@dataclass(slots=True)
class _Open:
    samples: int = 0
    loss_sum: float = 0.0
    positives: dict[int, Counter[int]] = field(default_factory=dict)
    """By label: how many in each bin."""
    negatives: dict[int, Counter[int]] = field(default_factory=dict)


class Minutes:
    """Adds up what workers tell; exact over all of them, but for pairs of predictions within one bin."""

    def __init__(self, labels: Sequence[str]) -> None:
        self._labels = labels
        self._open: dict[float, _Open] = {}
        self.closed: deque[Minute] = deque(maxlen=KEPT)

    def hear(self, beat: Beat) -> None:
        """A worker's heartbeat."""
        if not beat.window_samples:
            return
        minute = self._open.setdefault(beat.at - beat.at % MINUTE_S, _Open())
        minute.samples += beat.window_samples
        minute.loss_sum += beat.loss * beat.window_samples
        for label, scores in enumerate(beat.scores):
            for found, counts in ((minute.positives, scores.positives), (minute.negatives, scores.negatives)):
                found.setdefault(label, Counter()).update(dict(zip(scores.bins, counts, strict=False)))

    def close(self, now: float) -> list[Minute]:
        """Those that are over, oldest first; each once."""
        over = sorted(at for at in self._open if at + MINUTE_S + LATE_S <= now)
        found = [self._made(at, self._open.pop(at)) for at in over]
        self.closed.extend(found)
        return found

    def _made(self, at: float, minute: _Open) -> Minute:
        areas = {
            label: area(minute.positives[label], minute.negatives[label]) for label in sorted(minute.positives)
        }
        return Minute(
            at, minute.samples, minute.loss_sum / minute.samples,
            {self._name(label): value for label, value in areas.items() if value is not None},
        )

    def _name(self, label: int) -> str:
        return self._labels[label] if label < len(self._labels) else str(label)


def area(positives: Counter[int], negatives: Counter[int]) -> float | None:
    """Under the ROC curve: the chance that a positive lies in a higher bin than a negative, the same counting one half.

    None with too few of either.
    """
    total, others = positives.total(), negatives.total()
    if total < LEAST_EACH or others < LEAST_EACH:
        return None
    below = won = 0.0
    for place in sorted({*positives, *negatives}):
        won += positives[place] * (below + negatives[place] / 2)
        below += negatives[place]
    return won / (total * others)

