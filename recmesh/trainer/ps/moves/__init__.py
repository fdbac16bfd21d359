"""Slots that move to another server while training goes on (PROTOCOL §7): the source's half and the target's."""

from recmesh.trainer.ps.moves.cargo import Cargo, InstallOrder, StageOrder, TableCargo, Target
from recmesh.trainer.ps.moves.commands import Moves, Reach
from recmesh.trainer.ps.moves.sending import FreezeResult, MoveOrder, MoveProgress

__all__ = [
    "Cargo",
    "FreezeResult",
    "InstallOrder",
    "MoveOrder",
    "MoveProgress",
    "Moves",
    "Reach",
    "StageOrder",
    "TableCargo",
    "Target",
]
