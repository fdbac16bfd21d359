"""What the threads of a worker are given: the terms of its work, a reader of data, and the model's declaration."""

import threading
from dataclasses import dataclass

from recmesh.spec.dataset import SampleKind
from recmesh.spec.job import Training
from recmesh.trainer.layout import DenseLayout
from recmesh.trainer.patience import NoLongerWanted
from recmesh.trainer.ports import Declared
from recmesh.trainer.worker.fleet import Fleet

_POLL_S = 0.1


class Declaration:
    """The model's tables and blocks, once they are known; threads that need them wait."""

    def __init__(self) -> None:
        self._known = threading.Event()
        self._declared = Declared()
        self.layout = DenseLayout(())

    def set(self, declared: Declared) -> None:
        """The model is built."""
        self._declared, self.layout = declared, DenseLayout(declared.dense)
        self._known.set()

    def get(self, gone: threading.Event) -> Declared:
        """Waits; NoLongerWanted once `gone` is set."""
        while not self._known.wait(_POLL_S):
            if gone.is_set():
                raise NoLongerWanted("declaration")
        return self._declared


@dataclass(frozen=True)
class Terms:
    """What never changes over a worker's life."""

    worker: str
    batch_size: int
    in_flight: int
    read_ahead: int = 2
    staleness: int = 0
    """Most steps of a server between pull and push; 0: any."""
    step_batches: int = 0
    """Of a synchronous step; 0: asynchronous."""
    fleet: type[Fleet] = Fleet
    kinds: tuple[SampleKind, ...] = ("batch",)
    """By the dataset's view: of which kind its samples are."""

    @staticmethod
    def of(
        training: Training, *, worker: str, fleet: type[Fleet] = Fleet, kinds: tuple[SampleKind, ...] = ("batch",)
    ) -> "Terms":
        """As the job says."""
        return Terms(worker, training.batch_size, training.in_flight, staleness=training.staleness or 0,
                     step_batches=training.sync.batches_per_step if training.sync else 0, fleet=fleet, kinds=kinds)
