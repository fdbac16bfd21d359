"""The HNs of one model as a CN sees them: the rules of `admission.domain` with a clock, chance and a lock."""

import random
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from recmesh.serving.admission.domain.choice import Choice
from recmesh.serving.admission.domain.ejection import Ejection, Rules
from recmesh.serving.admission.domain.hedging import HedgeRules, Hedging


class Fleet:
    """Used from any thread."""

    def __init__(
        self, names: Iterable[str], *, ejection: Rules | None = None, hedging: HedgeRules | None = None,
        rng: random.Random | None = None,
    ) -> None:  # fmt: skip
        self.names = tuple(dict.fromkeys(names))
        self._rng = rng or random.Random()
        self._choice = Choice()
        self._ejection = Ejection(ejection or Rules())
        self._hedging = Hedging(hedging or HedgeRules())
        self._choice.update(self.names)
        self._ejection.update(self.names)
        self._without: frozenset[str] = frozenset()
        self._answer_share = 0.0
        self._calls = self._hedges = 0
        self._lock = threading.Lock()

    def has(self, name: str, *, model: bool) -> None:
        """Whether this HN has the model, as far as is known; one that has not is not asked."""
        with self._lock:
            self._without = self._without - {name} if model else self._without | {name}

    def use(self, names: Iterable[str]) -> None:
        """These are the HNs from now on; what is known of those that stay is kept."""
        with self._lock:
            self.names = tuple(dict.fromkeys(names))
            self._choice.update(self.names)
            self._ejection.update(self.names)

    @property
    def able(self) -> list[str]:
        """Those that have the model."""
        without = self._without
        return [name for name in self.names if name not in without]

    def pick(self, there: Collection[str]) -> str | None:
        """Whom to ask, of those that are there; one that was ejected rather than none."""
        absent = {name for name in self.names if name not in there}
        now = time.monotonic()
        with self._lock:
            name = self._choice.pick(now, self._rng, without=self._ejection.out(now) | absent)
            return name or self._choice.pick(now, self._rng, without=absent)

    def called(self) -> float | None:
        """A call begins: seconds after which a second HN may be asked; None: too little is known."""
        with self._lock:
            self._calls += 1
            return self._hedging.began()

    def spend(self) -> bool:
        """Whether a second HN may be asked, by the budget; it is spent."""
        with self._lock:
            spent = self._hedging.spend()
            self._hedges += spent
            return spent

    def began(self, name: str) -> None:
        """This HN is asked."""
        with self._lock:
            self._choice.began(name)

    def answered(self, name: str, seconds: float, *, sent_bytes: int, answer_bytes: int) -> None:
        """It answered, so long after it was asked."""
        now = time.monotonic()
        with self._lock:
            self._choice.ended(name, now, seconds=seconds)
            self._ejection.answered(name, seconds, now)
            self._hedging.answered(seconds)
            self._answer_share = answer_bytes / max(1, sent_bytes)

    def dropped(self, name: str, seconds: float) -> None:
        """Its answer is not waited for any more: so long it takes at least."""
        with self._lock:
            self._choice.ended(name, time.monotonic(), seconds=seconds, is_whole=False)

    def refused(self, name: str, *, retry_after_s: float = 0.0) -> None:
        """It would not, which says nothing of its speed; it need not be asked for so long."""
        now = time.monotonic()
        with self._lock:
            self._choice.ended(name, now, seconds=None)
            if retry_after_s:
                self._choice.busy(name, now + retry_after_s)

    def failed(self, name: str) -> None:
        """It ended, is silent, or does not have the model."""
        now = time.monotonic()
        with self._lock:
            self._choice.ended(name, now, seconds=None)
            self._ejection.failed(name, now)

    def answer_bytes(self, sent_bytes: int) -> int:
        """What a request of this size is answered with, going by the last answer; 0 before the first."""
        return int(self._answer_share * sent_bytes)

    def state(self) -> Mapping[str, Any]:
        """For people."""
        with self._lock:
            return {
                "hns": list(self.names), "without": sorted(self._without),
                "ejected": sorted(self._ejection.out(time.monotonic())), "calls": self._calls, "hedges": self._hedges,
            }  # fmt: skip
