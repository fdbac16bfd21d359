"""The user's main run only as far as its model: for roles that judge or export instead of training."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from recmesh.spec.job import TrainingJob
from recmesh.trainer.exits import UserMistake
from recmesh.trainer.layout import DenseLayout, declaration
from recmesh.trainer.ports import Declared
from recmesh.trainer.session import BuildOnly, DenseBlock, EmbeddingTable, Job, ServableModel, Step
from recmesh.trainer.usercode import resolve, seed_everything


class BuildSession:
    """A Session that takes declarations and has no steps."""

    def __init__(self, spec: TrainingJob) -> None:
        self._spec = spec
        self.declared = Declared()

    def declare(self, tables: Sequence[EmbeddingTable], dense: Sequence[DenseBlock]) -> None:
        """See Session.declare."""
        self.declared = declaration(self._spec, tables, dense)

    def steps(self) -> Iterator[Step]:
        """Raises BuildOnly."""
        raise BuildOnly

    def close(self) -> None:
        """See Session.close."""


@dataclass(frozen=True)
class Built:
    """A model whose parameters are elsewhere."""

    job: Job
    model: ServableModel
    declared: Declared

    @property
    def layout(self) -> DenseLayout:
        """Where its dense blocks lie."""
        return DenseLayout(self.declared.dense)


def build(spec: TrainingJob, *, job_id: str) -> Built:
    """Runs the user's main in build mode; UserMistake when it attaches no model."""
    main = resolve(spec.model)
    seed_everything(spec.training.seed)
    session = BuildSession(spec)
    job = Job(spec, session, mode="build", id=job_id)
    try:
        main(job)
    except BuildOnly:
        pass
    if job.model is None:
        raise UserMistake("the model's main attached no model: call attach of recmesh.torch or recmesh.keras")
    return Built(job, job.model, session.declared)
