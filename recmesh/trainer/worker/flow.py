"""A batch on its way through the worker's threads: read, then ready for the model."""

import queue
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from recmesh.trainer.layout import Arena, Prepared
from recmesh.trainer.patience import NoLongerWanted
from recmesh.trainer.ports import Lease, Piece
from recmesh.trainer.session import Floats

if TYPE_CHECKING:
    from recmesh.data import Batch

T = TypeVar("T")
_POLL_S = 0.1


@dataclass(slots=True)
class Read:
    """A batch of a lease with its rows of data."""

    lease: Lease
    piece: Piece
    batch: "Batch"
    data_s: float


@dataclass(slots=True)
class Ready:
    """A batch with its embeddings and dense values, in flight."""

    read: Read
    prepared: Prepared
    arenas: dict[int, Arena]
    rows: dict[str, Floats]
    dense: Floats
    pulled_steps: dict[int, int]
    """By server: how far it was."""

    def pulled_step(self, ps: int) -> int:
        """Of a server, or of the furthest when slots have moved to it since."""
        return self.pulled_steps.get(ps, max(self.pulled_steps.values()))


class Lane(Protocol[T]):
    """A queue, or what orders batches otherwise."""

    def put(self, item: T, /, *, timeout: float) -> None:
        """queue.Full when there is no room in this time."""

    def get(self, *, timeout: float) -> T:
        """queue.Empty when there is nothing in this time."""


def offer(lane: Lane[T], item: T, *, gone: threading.Event) -> None:
    """Puts it in as soon as there is room; NoLongerWanted once `gone` is set."""
    while True:
        try:
            return lane.put(item, timeout=_POLL_S)
        except queue.Full:
            if gone.is_set():
                raise NoLongerWanted("queue") from None
