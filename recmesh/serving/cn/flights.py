"""A request on its way through a CN, and the HNs that are asked for it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from recmesh.runtime.errors import Aborted, DeadlineExceeded
from recmesh.serving.cn.alarms import Alarm
from recmesh.serving.cn.fleet import Fleet
from recmesh.serving.cn.following import Following
from recmesh.serving.cn.line import Turn
from recmesh.serving.cn.model import CnModel
from recmesh.serving.cn.peers import HnLink
from recmesh.serving.frames import Header
from recmesh.serving.fresh.version import Version
from recmesh.serving.programs import Arrays
from recmesh.serving.tensors import Tensor


@dataclass(slots=True, eq=False)
class Attempt:
    """One HN that is asked for a request."""

    link: HnLink
    began: float
    """On the monotonic clock."""
    ask: int = 0
    """The number by which leave to send was asked for; 0: nobody was asked, or it was answered."""
    grant: int = 0
    """The number by which it may be sent."""
    call: int = 0
    """The number by which it was sent; 0: it was not."""
    granted_ns: int = 0
    over: bool = False
    """It was answered, failed, or is not waited for."""
    too_late: bool = False
    """It came after its grant was over, and was not computed."""


@dataclass(slots=True, eq=False)
class Flight:
    """A request on its way. Exactly one of `answer` and `fail` is called, once."""

    model: CnModel
    fleet: Fleet
    known: Arrays = field(repr=False)
    outputs: Sequence[str]
    deadline: float
    """On the monotonic clock."""
    priority: int
    timeout_us: int
    answer: Callable[[Header, Sequence[Tensor]], None]
    fail: Callable[[Exception], None]
    caller: int = -1
    call: int = 0
    cancelled: bool = False
    tensors: Sequence[Tensor] = ()
    """What the HN needs."""
    attempts: list[Attempt] = field(default_factory=list)
    tried: frozenset[str] = frozenset()
    hedge: Alarm | None = None
    turn: "Turn[Flight]" = field(default_factory=Turn)
    """Of its model."""
    following: Following | None = None
    """Of a model that follows its job."""
    version: Version | None = None
    """Whose rows `known` has."""
    arrived: int = field(default_factory=time.monotonic_ns)
    begun: int = 0
    prepared: int = 0
    rows: int = 0
    """Samples, going by the inputs' first dimension."""

    def __post_init__(self) -> None:
        self.rows = max((array.shape[0] for array in self.known.values() if array.ndim), default=1)

    @property
    def under_way(self) -> list[Attempt]:
        """HNs that may still answer."""
        return [attempt for attempt in self.attempts if not attempt.over]

    @property
    def computed(self) -> int:
        """How many HNs may have computed it, or do."""
        return sum(not attempt.too_late for attempt in self.attempts)

    @property
    def size_bytes(self) -> int:
        """Of what the HN needs."""
        return sum(tensor.array.nbytes for tensor in self.tensors)

    def take(self) -> None:
        """From here on it is of the version that serves now, until that is given back."""
        if self.following is not None:
            self.version = self.following.take()

    def prepare(self) -> None:
        """Run what comes before the dense half."""
        if self.following is None or self.version is None:
            self.known = self.model.prepare(self.known)
        else:
            self.known = {**self.known, **self.following.sparse.fed(self.version, self.known)}

    def give_back(self) -> None:
        """Nothing is computed by its version any more, of which this process wants to know."""
        if self.following is not None and self.version is not None:
            self.following.give_back(self.version)
            self.version = None

    def check(self) -> None:
        """Raises why it need not be done any more, if so."""
        if self.cancelled:
            raise gone()
        if time.monotonic() >= self.deadline:
            raise DeadlineExceeded("its deadline was over before the model could run", reason="DEADLINE_EXCEEDED")


def gone() -> Aborted:
    """Nobody waits for the answer."""
    return Aborted("it was taken back before it was answered", reason="CANCELLED")
