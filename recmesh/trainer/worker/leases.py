"""How far each of this worker's leases is trained. Pure; the caller holds the lock."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from recmesh.trainer.ports import Lease, LeaseProgress, Piece


@dataclass
class _Held:
    lease: Lease
    hi: int
    """Where it ends: nearer than the lease says when it was cut."""
    open: dict[int, Piece] = field(default_factory=dict)
    """By its first position: each batch that is not applied everywhere."""

    def progress(self) -> LeaseProgress:
        done_to = min(self.open, default=self.hi)
        return LeaseProgress(self.lease.epoch, done_to, not self.open, self.hi)


class LeaseBook:
    """Leases with their open batches."""

    def __init__(self) -> None:
        self._held: dict[int, _Held] = {}

    def take(self, lease: Lease, batches: Sequence[Piece]) -> None:
        """A new lease, of which `batches` are to be trained."""
        self._held[lease.epoch] = _Held(lease, lease.piece.hi, {piece.lo: piece for piece in batches})

    def applied(self, epoch: int, piece: Piece) -> bool:
        """A batch is everywhere; True when it was the lease's last."""
        held = self._held.get(epoch)
        if held is None or held.open.pop(piece.lo, None) is None:
            return False
        return not held.open

    def recut(self, epoch: int, piece: Piece, parts: Sequence[Piece]) -> bool:
        """A batch is to be trained as `parts` instead; False when the lease is gone."""
        held = self._held.get(epoch)
        if held is None:
            return False
        held.open.pop(piece.lo, None)
        held.open.update({part.lo: part for part in parts})
        return True

    def wants(self, epoch: int, piece: Piece) -> bool:
        """False from when the batch is applied, or its lease was lost, completed, or cut before it."""
        held = self._held.get(epoch)
        return held is not None and piece.lo in held.open

    def cut(self, epoch: int, hi: int) -> bool:
        """What begins at `hi` or later is others' to train; True when nothing is left."""
        held = self._held.get(epoch)
        if held is None or hi >= held.hi:
            return False
        held.hi = hi
        held.open = {lo: piece for lo, piece in held.open.items() if lo < hi}
        return not held.open

    def progress(self) -> list[LeaseProgress]:
        """Of every lease held."""
        return [held.progress() for held in self._held.values()]

    def forget(self, epochs: Collection[int]) -> None:
        """Leases that were lost, or whose completion was acknowledged."""
        for epoch in epochs:
            self._held.pop(epoch, None)

    @property
    def is_trained(self) -> bool:
        """No batch of any lease is open."""
        return not any(held.open for held in self._held.values())

    @property
    def empty(self) -> bool:
        """Nothing is held."""
        return not self._held
