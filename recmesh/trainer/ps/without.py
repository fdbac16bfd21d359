"""Parameter servers that lack one rule (see recmesh.trainer.breaking): each loses or doubles samples in some fault."""

import time
from collections.abc import Sequence

from recmesh.trainer.ps.ledger import Batch, Books, Claim, Cut
from recmesh.trainer.ps.messages import MarkResult, Part
from recmesh.trainer.ps.server import ParameterServer

TORN_S = 0.05


def server_without(rule: str) -> type[ParameterServer]:
    """The class to serve with; of a rule that is not the servers' ('' too), the real one."""
    return _SERVERS.get(rule, ParameterServer)


class _NoDedup(Books):
    def claim(self, batch: Batch, *, epoch: int, last_step: int | None = None) -> Claim:
        """Every group takes every batch that comes."""
        for group in self.groups:
            for piece in batch:
                group.taken.add(*piece)
        self.epochs.enter(batch, epoch)
        steps = tuple(group.step for group in self.groups)
        return Claim(batch, tuple(self.groups), steps, len(self.groups) == 1)


class _NoMap(Books):
    def check_map(self, version: int) -> None:
        """Any version will do."""


class _NoGeneration(Books):
    def check_generation(self, gen: int) -> None:
        """Any generation will do."""

    def check_restore(self, gen: int, *, incarnation: str) -> None:
        """An older one, too."""
        super().check_restore(max(gen, self.gen + 1, self.ordered), incarnation=incarnation)


class _NoIncarnation(Books):
    def check_restore(self, gen: int, *, incarnation: str) -> None:
        """Whomever it was meant for."""
        super().check_restore(gen, incarnation=self.incarnation)


class _NoCarriage(Books):
    def join(self, cuts: Sequence[Cut], *, since: int) -> None:
        """Slots come under the ledger of those that are here."""
        own = self.groups[0] if self.groups else None
        super().join([Cut(cut.slots, own.applied.copy(), own.step) if own else cut for cut in cuts], since=since)


class _Dedup(ParameterServer):
    books_type = _NoDedup


class _Map(ParameterServer):
    books_type = _NoMap


class _Generation(ParameterServer):
    books_type = _NoGeneration


class _Incarnation(ParameterServer):
    books_type = _NoIncarnation


class _Carried(ParameterServer):
    books_type = _NoCarriage


class _Promise(ParameterServer):
    def abort_install(self, gen: int, term: int, move: int) -> bool:
        """Says what is, and promises nothing."""
        return self.moves.receiver.has_installed(move)


class _Coverage(ParameterServer):
    def _check_split(self, part: Part) -> None:
        """Rows of whichever slots."""


class _OneCut(ParameterServer):
    def mark(self, gen: int, term: int, snapshot: int, *, base: int = 0) -> MarkResult:
        """Ledgers now, rows a moment later; pushes go on in between."""
        early = self.books.cut()
        time.sleep(TORN_S)
        whole, self.books.cut = self.books.cut, lambda: early   # type: ignore[method-assign]  # that is the tear
        try:
            return super().mark(gen, term, snapshot, base=base)
        finally:
            self.books.cut = whole  # type: ignore[method-assign]


_SERVERS: dict[str, type[ParameterServer]] = {
    "dedup": _Dedup, "map": _Map, "generation": _Generation, "incarnation": _Incarnation, "coverage": _Coverage,
    "one_cut": _OneCut, "carried": _Carried, "promise": _Promise,
}
