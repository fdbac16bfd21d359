"""A batch on its way through the worker's threads: read, then ready for the model."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from recmesh.trainer.layout import Arena, Prepared
from recmesh.trainer.ports import Lease, Piece
from recmesh.trainer.session import Floats

if TYPE_CHECKING:
    from recmesh.data import Batch


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
