"""What stands for ckptcache and for other servers where a server is alone."""

import threading
from collections.abc import Sequence

from recmesh.formats.snapshot import Part, open_part
from recmesh.runtime.errors import Unavailable
from recmesh.trainer.ps.messages import RestoreOrder
from recmesh.trainer.ps.moves import Target


def stored_parts(order: RestoreOrder) -> Sequence[Part]:
    """The parts from their URIs, without ckptcache."""
    return [open_part(uri) for uri in order.parts]


def keep_nothing(_: object, __: threading.Event) -> bool:
    """A delivery to nobody."""
    return False


def tell_nobody(_: object, __: str, ___: threading.Event) -> None:
    """Nobody waits for a part."""


def reach_nobody(address: str) -> Target:
    """A connection to nobody."""
    raise Unavailable(f"this server reaches no other, and not {address}", reason="ALONE")
