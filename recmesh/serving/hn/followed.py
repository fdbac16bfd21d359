"""The dense half of a model that follows its job: the constants of a few versions, and which CNs want which.

A CN has it hold a version's constants before it sends requests of that version, and says when none of its requests
can be of it any more. A request names its version, and is computed with that one's constants or refused.
"""

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recmesh.runtime.errors import InvalidArgument, ResourceExhausted, Unavailable
from recmesh.serving.apart import Apart, places_input, rows_input
from recmesh.serving.programs import Arrays, Tunable

Holder = tuple[int, int]
"""A connection, and who on its other side: a CN that loads a model anew has two for a moment."""

MOST_OF_ONE = 8
"""Versions that one CN may have held: that which serves, the next, one that is rolled back to, those of requests."""


class Followed:
    """`run_at` is called by one thread, all else by any."""

    def __init__(self, inner: Tunable, apart: Apart) -> None:
        self._inner = inner
        self._rows = {rows_input(number) for number in range(len(apart.tables))}
        self._places = {
            places_input(number, feature): rows_input(number)
            for number, table in enumerate(apart.tables) for feature in table.features
        }
        self._parameters = set(apart.dense.values())
        self._lock = threading.Lock()
        self._placed: dict[int, Any] = {}
        self._holders: dict[int, set[Holder]] = {}
        self._used: Any = None
        self.answered = 0
        """The version of the last answer; for the thread that called."""

    @property
    def versions(self) -> list[int]:
        """Those that are held, ascending."""
        with self._lock:
            return sorted(self._placed)

    def hold(self, version: int, holder: Holder, values: Mapping[str, NDArray[Any]] | None) -> bool:
        """This CN wants the version, whose parameters by name are these. Without values: False where it is not here.

        InvalidArgument: they are another program's. ResourceExhausted: the CN has it hold too many.
        """
        with self._lock:
            of_one = [each for each, holders in self._holders.items() if holder in holders]
            if version not in of_one and len(of_one) >= MOST_OF_ONE:
                why = f"this HN holds {MOST_OF_ONE} versions of the model for that CN already"
                raise ResourceExhausted(why, reason="TOO_MANY_VERSIONS")
            if version in self._placed:
                self._holders[version].add(holder)
                return True
        if values is None:
            return False
        if values.keys() != self._parameters:    # or the others would be another version's
            why = f"version {version} was given {len(values)} of the {len(self._parameters)} parameters"
            raise InvalidArgument(why, reason="BAD_VERSION")
        placed = self._inner.placed(values)      # to the device, while requests run
        with self._lock:
            self._placed.setdefault(version, placed)
            self._holders.setdefault(version, set()).add(holder)
        return True

    def release(self, versions: Sequence[int], holder: Holder) -> None:
        """This CN has no more requests of these."""
        with self._lock:
            for version in versions:
                self._let_go(version, holder)

    def keep(self, connections: Collection[int]) -> None:
        """All others ended."""
        with self._lock:
            gone = [
                (each, holder) for each, had in self._holders.items() for holder in had if holder[0] not in connections
            ]
            for version, holder in gone:
                self._let_go(version, holder)

    def take_over(self, before: "Followed") -> None:
        """What the same program held before it was loaded anew: CNs go on asking for it."""
        with before._lock:
            self._placed = dict(before._placed)
            self._holders = {version: set(holders) for version, holders in before._holders.items()}

    def check(self, version: int) -> None:
        """Unavailable (NOT_HELD) where a request of this version could not be computed."""
        if version not in self._placed:
            raise self._absent(version)

    def run_at(self, version: int, inputs: Arrays) -> Arrays:
        """Outputs by name, by the constants of this version. Unavailable (NOT_HELD)."""
        placed = self._placed.get(version)
        if placed is None:
            raise self._absent(version)
        if placed is not self._used:
            self._used = None                    # should it raise in the middle
            self._inner.use(placed)
            self._used = placed
        self.answered = version
        return self._inner.run(inputs)

    def run(self, inputs: Arrays) -> Arrays:
        """See Program: with the parameters that were exported, to warm up."""
        return self._inner.run(inputs)

    def per_sample(self, inputs: Arrays) -> Arrays:
        """Those of the inputs whose first dimension is the request's samples."""
        return {name: array for name, array in inputs.items() if name not in self._rows}

    def joined(self, requests: Sequence[Arrays]) -> Arrays:
        """Several requests of one version as one: each one's rows behind those before, and its places moved as far."""
        made: Arrays = {}
        for name in requests[0]:
            arrays = [inputs[name] for inputs in requests]
            rows = self._places.get(name)
            if rows is not None:
                begins = np.cumsum([0, *(len(inputs[rows]) for inputs in requests[:-1])])
                arrays = [array + begin for array, begin in zip(arrays, begins, strict=True)]
            made[name] = np.concatenate(arrays)
        return made

    def _absent(self, version: int) -> Unavailable:
        held = ", ".join(map(str, self.versions)) or "none"
        return Unavailable(f"this HN does not hold version {version}; it holds {held}", reason="NOT_HELD")

    def _let_go(self, version: int, holder: Holder) -> None:
        holders = self._holders.get(version)
        if holders is not None:
            holders.discard(holder)
            if not holders:
                del self._holders[version]
                self._placed.pop(version, None)
