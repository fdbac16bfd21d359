"""Who wants which model in an HN that loads what CNs tell it to. Pure: time is an argument.

A model stays while a CN wants it, and for a while after its last one is lost: that one may be starting again.
"""

from collections.abc import Hashable


class Holders:
    """By model."""

    def __init__(self, *, keep_s: float) -> None:
        self._keep_s = keep_s
        self._holders: dict[str, set[Hashable]] = {}
        self._left: dict[str, float] = {}
        """When the last holder of each was lost."""

    def hold(self, model: str, holder: Hashable) -> None:
        """It is wanted."""
        self._holders.setdefault(model, set()).add(holder)
        self._left.pop(model, None)

    def release(self, model: str, holder: Hashable) -> bool:
        """It is not wanted by this one any more; True when it is by nobody, and was before."""
        holders = self._holders.get(model)
        if holders is None:
            return False
        holders.discard(holder)
        if holders:
            return False
        self.forget(model)
        return True

    def lost(self, holder: Hashable, now: float) -> None:
        """One is gone, without a word."""
        for model, holders in self._holders.items():
            if holder in holders:
                holders.discard(holder)
                if not holders:
                    self._left[model] = now

    def unwanted(self, now: float) -> list[str]:
        """Models whose last holder has been away for `keep_s`; they are forgotten here."""
        found = [model for model, left in self._left.items() if now - left >= self._keep_s]
        for model in found:
            self.forget(model)
        return found

    def forget(self, model: str) -> None:
        """It is nobody's."""
        self._holders.pop(model, None)
        self._left.pop(model, None)

    def knows(self, model: str) -> bool:
        """Whether it is wanted, or was by one that was lost not long ago."""
        return model in self._holders

    def of(self, model: str) -> int:
        """How many want it."""
        return len(self._holders.get(model, ()))
