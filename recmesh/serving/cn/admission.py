"""The seam between a CN and whoever decides when it may send to an HN (incast control)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from recmesh.runtime.errors import MeshError


@dataclass(frozen=True, slots=True)
class Asking:
    """A request that is ready to be sent."""

    hn: str
    model: str
    size_bytes: int
    deadline: float
    """On this process' monotonic clock."""
    priority: int


@dataclass(frozen=True, slots=True)
class Grant:
    """Leave to send; `number` is the one to give it back by."""

    hn: str
    number: int = 0


Decided = Callable[[Grant | MeshError], None]


class Admission(Protocol):
    """Asked from any thread; must not block."""

    def ask(self, asking: Asking, decided: Decided) -> None:
        """`decided` is called once, in any thread: with a grant, or with why the request may not be sent."""
        ...

    def release(self, grant: Grant, *, sent: bool) -> None:
        """The answer came, or none will: what was granted is free again. `sent`: the request went out."""
        ...


class Open:
    """Grants at once: for few CNs, which cannot overflow the way to an HN."""

    def ask(self, asking: Asking, decided: Decided) -> None:
        """A grant."""
        decided(Grant(asking.hn))

    def release(self, grant: Grant, *, sent: bool) -> None:
        """Nothing was held."""
