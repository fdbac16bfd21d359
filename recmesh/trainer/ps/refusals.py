"""What a parameter server answers instead of doing it. None of these has an effect on its state."""

from collections.abc import Sequence

from recmesh.formats.intervals import Triple
from recmesh.runtime.errors import FailedPrecondition


class Refusal(FailedPrecondition):
    """The message does not fit the state; `reason` says which rule refused it."""


class NoGeneration(Refusal):
    """This process was not (yet) given a generation; it refuses everything."""

    def __init__(self) -> None:
        super().__init__("this parameter server has no generation", reason="NO_GENERATION")


class StaleGeneration(Refusal):
    """The message is of another generation."""

    def __init__(self, gen: int, *, asked: int) -> None:
        super().__init__(f"this is generation {gen}, not {asked}", reason="STALE_GEN",
                         metadata={"gen": str(gen)})
        self.gen = gen


class StaleTerm(Refusal):
    """A newer jobmaster has taken over."""

    def __init__(self, term: int, *, asked: int) -> None:
        super().__init__(f"term {term} has taken over from {asked}", reason="STALE_TERM",
                         metadata={"term": str(term)})


class WrongIncarnation(Refusal):
    """The message was meant for an earlier process at this address."""

    def __init__(self) -> None:
        super().__init__("the message names another incarnation", reason="WRONG_INCARNATION")


class WrongMap(Refusal):
    """The split was made by a map in which this server owns other slots."""

    def __init__(self, since: int, *, asked: int) -> None:
        super().__init__(f"slots here changed with map {since}; the split is by map {asked}",
                         reason="WRONG_MAP", metadata={"since": str(since)})
        self.since = since


class OldLease(Refusal):
    """A newer lease over these positions has been seen. Not needed for safety: it stops zombies early."""

    def __init__(self, epoch: int) -> None:
        super().__init__(f"a lease of epoch {epoch} was seen for these positions", reason="OLD_LEASE")


class Overlap(Refusal):
    """Some group has a part of the batch and not all of it; `cuts` are those parts, of every group."""

    def __init__(self, cuts: Sequence[Triple]) -> None:
        super().__init__(f"partly applied: {list(cuts)}", reason="OVERLAP")
        self.cuts = tuple(cuts)


class Stale(Refusal):
    """The values from which the gradients were computed are too old: pull and compute again."""

    def __init__(self, step: int, *, last: int) -> None:
        super().__init__(f"step {step} is applied; the gradients were good until step {last}", reason="STALE")


class NotDeclared(Refusal):
    """No worker of this generation has declared the model yet."""

    def __init__(self) -> None:
        super().__init__("tables and dense blocks are not declared", reason="NOT_DECLARED")
