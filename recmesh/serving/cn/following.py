"""Models that follow their job, in halves: a CN switches to a version once its HNs hold that version's constants.

An HN that has the program is told to hold the constants of the version that serves, and of the one that is to be next;
it is asked for requests while it holds those of the version that serves. Which version a request is of is fixed when it
comes, and travels with it (`hn.followed` refuses all others), so that no answer is of two. A version that
no request of this CN can be of any more is released.

One thread compares what HNs should hold with what they have said that they hold, and tells them. (ADR 21)
"""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from recmesh.runtime.errors import InvalidArgument, MeshError, Unavailable
from recmesh.serving.cn.fleet import Fleet
from recmesh.serving.cn.peers import Hns
from recmesh.serving.frames import Header
from recmesh.serving.fresh.sparse import Sparse
from recmesh.serving.fresh.version import Version
from recmesh.serving.tensors import Tensor
from recmesh.serving.transport import Message

PATIENCE_S = 2.0
"""For so long a new version waits for an HN that is asked, if another has it; then that one is left out."""
MOST_S = 60.0
"""For so long it waits for the first."""
AGAIN_S = 0.2
"""After an HN could not."""
MOST_BEHIND = 3
"""Versions of requests under way that HNs hold beside the one that serves. A request of one before is begun anew."""
GRACE_S = 1.0
"""After it was closed, for requests that had chosen this model and not yet taken a version."""

_owners = itertools.count(1)


@dataclass(slots=True, eq=False)
class _Hn:
    """What an HN has said."""

    held: set[int] = field(default_factory=set)
    lacking: set[int] = field(default_factory=set)
    """It has them from no other CN: they must be given to it."""
    refused: dict[int, MeshError] = field(default_factory=dict)
    """For good: why it cannot hold them."""
    unsure: set[int] = field(default_factory=set)
    """It was told to hold them, and did not say whether it does."""
    told: bool = False
    """It has not answered."""
    rests_until: float = 0.0
    why: str = ""


class Following:
    """Of one model in a CN. Used from any thread. Stands for its fleet before `Halves`: an HN that has the program is
    not asked before it holds the constants, too."""

    def __init__(
        self, key: str, digest: str, sparse: Sparse, fleet: Fleet, hns: Hns, *, log: Callable[[str], None],
        patience_s: float = PATIENCE_S, most_s: float = MOST_S,
    ) -> None:  # fmt: skip
        self.sparse = sparse
        self._fleet, self._hns, self._log = fleet, hns, log
        self._patience_s, self._most_s = patience_s, most_s
        self._header: Header = {"model": key, "program": digest, "owner": next(_owners)}
        self._changed = threading.Condition()
        self._there: dict[str, _Hn] = {}
        self._next: list[Version] = []
        self._flying: Counter[int] = Counter()
        self._closed, self._closed_at = False, 0.0
        for name in fleet.names:
            fleet.has(name, model=False)
        threading.Thread(target=self._work, name=f"versions of {key}", daemon=True).start()

    @property
    def names(self) -> Sequence[str]:
        """See Fleet."""
        return self._fleet.names

    def has(self, name: str, *, model: bool) -> None:
        """Whether this HN has the program, as far as is known."""
        with self._changed:
            if model:
                self._there.setdefault(name, _Hn())
            else:
                self._there.pop(name, None)
            self._look()

    def use(self, names: Iterable[str]) -> list[str]:
        """These are the HNs from now on; answers with those that are new."""
        with self._changed:
            wanted = list(dict.fromkeys(names))
            added = [name for name in wanted if name not in self._fleet.names]
            for name in added:
                self._fleet.has(name, model=False)
            self._fleet.use(wanted)
            for name in [name for name in self._there if name not in wanted]:
                del self._there[name]
            self._look()
        return added

    def begin(self) -> None:
        """It is warm: follow the job from now on."""
        self.sparse.begin(self.proposed)

    def take(self) -> Version:
        """The version that a request is of from now on, until it is given back."""
        with self._changed:                      # or it might be released between the two lines
            version = self.sparse.version
            self._flying[version.number] += 1
            return version

    def give_back(self, version: Version) -> None:
        """The request is over, or of another version."""
        with self._changed:
            self._flying[version.number] -= 1
            if not self._flying[version.number]:
                del self._flying[version.number]
                self._changed.notify_all()

    def lacks(self, name: str, version: Version) -> None:
        """An HN refused a request: it does not hold that version (any more)."""
        with self._changed:
            if (hn := self._there.get(name)) is not None:
                hn.held.discard(version.number)
                self._look()

    @contextmanager
    def proposed(self, version: Version) -> Iterator[None]:
        """See Proposed: entered when all HNs that are asked hold its constants, or one does and the others are late.

        Unavailable: none holds them in time; or why none can.
        """
        with self._changed:
            self._next.append(version)
            self._changed.notify_all()
        try:
            self._wait(version.number)
            yield
        finally:
            with self._changed:
                self._next.remove(version)
                self._look()

    def status(self) -> dict[str, Any]:
        """Of the version, of the tiers, and which versions HNs hold."""
        with self._changed:
            held = {name: sorted(hn.held) for name, hn in self._there.items()}
            why = {name: hn.why for name, hn in self._there.items() if hn.why}
        without = [name for name in self._fleet.names if name not in self._fleet.able]
        return {**self.sparse.status(), "hns": held, "left_out": without, "left_out_why": why}

    def close(self) -> None:
        """Follow no more; what HNs hold for this model is released once no request needs it."""
        self.sparse.close()
        with self._changed:
            self._closed, self._closed_at = True, time.monotonic()
            self._changed.notify_all()

    # ---- inside

    def _look(self) -> None:
        """After any change, under the lock: who can be asked."""
        serves = self.sparse.version.number
        for name in self._fleet.names:
            hn = self._there.get(name)
            self._fleet.has(name, model=hn is not None and serves in hn.held)
        self._changed.notify_all()

    def _wait(self, number: int) -> None:
        began = time.monotonic()
        with self._changed:
            asked = set(self._fleet.able) or set(self._there)
            while True:
                waited_s = time.monotonic() - began
                holding = [name for name, hn in self._there.items() if number in hn.held]
                missing = [name for name in asked if name in self._there and name not in holding]
                if holding and (not missing or waited_s >= self._patience_s):
                    return
                if not self._there or self._closed:
                    raise Unavailable(f"there is no HN to hold version {number}", reason="NO_HN")
                refused = [hn.refused[number] for hn in self._there.values() if number in hn.refused]
                if len(refused) == len(self._there):
                    raise refused[0]
                if waited_s >= self._most_s:
                    why = "; ".join(f"{name}: {hn.why or 'it does not answer'}" for name, hn in self._there.items())
                    raise Unavailable(f"no HN holds version {number} ({why})", reason="NOT_HELD")
                self._changed.wait((self._patience_s if holding else self._most_s) - waited_s)

    def _wanted(self) -> list[Version]:
        """To be held by all HNs, the most urgent first."""
        return [] if self._is_over() else [self.sparse.version, *self._next]

    def _is_over(self) -> bool:
        return self._closed and not self._flying and time.monotonic() - self._closed_at >= GRACE_S

    def _kept(self) -> set[int]:
        """Not to be released yet."""
        if self._is_over():
            return set()
        serves = self.sparse.version.number
        behind = sorted(number for number in self._flying if number != serves)[-MOST_BEHIND:]
        return {version.number for version in self._wanted()} | set(behind)

    def _work(self) -> None:
        while True:
            with self._changed:
                now, kept = time.monotonic(), self._kept()
                behind = {name: (hn.held | hn.unsure) - kept for name, hn in self._there.items()}
                releases = {name: numbers for name, numbers in behind.items() if numbers}
                offers = list(self._offers(now))
                if not releases and not offers:
                    if self._is_over() and not any(hn.told for hn in self._there.values()):
                        return
                    rests = [hn.rests_until - now for hn in self._there.values() if hn.rests_until > now]
                    self._changed.wait(min([*rests, *([GRACE_S] if self._closed else [])], default=None))
                    continue
                for hn in self._there.values():
                    hn.held &= kept
                    hn.unsure &= kept
                    hn.lacking &= kept
                    hn.refused = {number: why for number, why in hn.refused.items() if number in kept}
                for _, hn, _ in offers:
                    hn.told = True
            for name, numbers in releases.items():
                self._call(name, {"op": "release", "versions": sorted(numbers)}, (), lambda _: None)
            for name, hn, version in offers:
                self._offer(name, hn, version)

    def _offers(self, now: float) -> Iterator[tuple[str, _Hn, Version]]:
        """What each HN is to be told next: one thing at a time, so that nothing piles up before one that is slow."""
        for name, hn in self._there.items():
            missing = [each for each in self._wanted() if each.number not in hn.held | hn.refused.keys()]
            if missing and not hn.told and now >= hn.rests_until:
                yield name, hn, missing[0]

    def _offer(self, name: str, hn: _Hn, version: Version) -> None:
        """Constants are megabytes, and another CN may have given them: they are for an HN that has said no."""
        given = version.number in hn.lacking
        values = self.sparse.parameters(version) if given else {}
        self._call(
            name, {"op": "hold", "version": version.number, "given": given},
            [Tensor.of(parameter, block) for parameter, block in values.items()],
            partial(self._answered, name, hn, version.number),
        )

    def _call(
        self, name: str, header: Header, tensors: Sequence[Tensor], done: Callable[[Message | MeshError], None]
    ) -> None:
        try:
            link = self._hns.link(name)
            if link is None:
                raise Unavailable(f"{name} is not known any more", reason="HN_LOST")
            link.call({**self._header, **header}, tensors, deadline=time.monotonic() + self._most_s, done=done)
        except MeshError as error:
            done(error)

    def _answered(self, name: str, hn: _Hn, number: int, outcome: Message | MeshError) -> None:
        with self._changed:
            hn.told = False
            if isinstance(outcome, MeshError):
                if str(outcome) != hn.why:
                    self._log(f"{name} does not hold version {number} of {self._header['model']}: {outcome}")
                hn.why, hn.rests_until = str(outcome), time.monotonic() + AGAIN_S
                hn.unsure.add(number)
                if isinstance(outcome, InvalidArgument):
                    hn.refused[number] = outcome
            elif outcome.header["held"]:
                hn.held.add(number)
                hn.why = ""
            else:
                hn.lacking.add(number)
            self._look()
