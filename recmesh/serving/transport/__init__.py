"""How frames get from a CN to an HN and back.

    Transport            one connection, as one side holds it: `send` from any thread, `receive` from one
      SocketTransport    Unix and TCP sockets, and the pair between the gateway and its children
      SharedTransport    a Unix socket for headers and small bodies, shared memory for the others

Another way to carry bytes (RDMA) is one more class with these methods, and one more scheme in `endpoints`.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from recmesh.serving.frames import Header
from recmesh.serving.tensors import Tensor


class ConnectionLost(Exception):
    """The other side is gone, or takes nothing any more; what was in flight may or may not have been done."""


@dataclass(frozen=True, slots=True)
class Message:
    """A frame that came in. The tensors' memory is theirs as long as anything refers to it."""

    header: Header
    tensors: list[Tensor]


class Transport(Protocol):
    """One connection."""

    def send(self, header: Header, tensors: Sequence[Tensor] = ()) -> None:
        """Send one frame, in whole or not at all for the other side; ConnectionLost when it cannot be sent."""
        ...

    def receive(self) -> Message | None:
        """The next frame; None at the end. FrameError when it is no frame; InvalidArgument names bad tensors."""
        ...

    def together(self) -> AbstractContextManager[None]:
        """What any thread sends in the block leaves at its end, in one piece. If it cannot, the connection is closed,
        and nobody who sent is told."""
        ...

    def close(self) -> None:
        """End it for both sides; whoever waits in `receive` gets None."""
        ...

    @property
    def kind(self) -> str:
        """`unix`, `tcp`, `shm`: for people."""
        ...
