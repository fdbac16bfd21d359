"""The stages of one split model that run on a CN, and what goes between them and the HN."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from recmesh.serving import halves
from recmesh.serving.card import ModelCard
from recmesh.serving.fresh.sparse import Sparse, open_sparse
from recmesh.serving.programs import Arrays, Program, framework
from recmesh.serving.settings import ServingSettings
from recmesh.serving.split.manifest import Stage
from recmesh.serving.tensors import Tensor


@dataclass(frozen=True, slots=True)
class Step:
    """A stage and its program."""

    stage: Stage
    program: Program

    def run(self, known: Arrays) -> Arrays:
        """Its outputs, from all that is known of a request."""
        return self.program.run({name: known[name] for name in self.stage.inputs})


@dataclass(frozen=True, slots=True)
class CnModel:
    """A loaded model."""

    key: str
    card: ModelCard
    """Of the whole model."""
    before: tuple[Step, ...]
    dense: Stage
    after: tuple[Step, ...]

    def prepare(self, inputs: Arrays) -> Arrays:
        """What is known of a request when its dense half may run."""
        known = dict(inputs)
        for step in self.before:
            known.update(step.run(known))
        return known

    def sent(self, known: Arrays) -> list[Tensor]:
        """What the HN needs."""
        return [Tensor.of(name, known[name]) for name in self.dense.inputs]

    def asked(self, outputs: Sequence[str]) -> list[str]:
        """What the HN must give for these outputs of the model."""
        wanted = {*outputs, *(name for step in self.after for name in step.stage.inputs)}
        return [name for name in self.dense.outputs if name in wanted]

    def finish(self, known: Arrays, given: Mapping[str, Tensor]) -> Arrays:
        """All that is known at the end, the model's outputs among it."""
        known = {**known, **{name: tensor.array for name, tensor in given.items()}}
        for step in self.after:
            known.update(step.run(known))
        return known


def load(key: str, folder: Path, *, threads: int) -> CnModel:
    """Read the stages of an exported model that run here; DataLoss when files are not those of `split.json`."""
    whole = halves.part(folder)
    split = halves.manifest_of(folder)
    halves.check_origin(folder, whole.card, split)
    position = split.stages.index(split.dense)
    chosen, _ = framework(split.framework, threads=threads)
    steps = []
    for stage in split.stages:
        if stage.where == "cn":
            part = halves.stage(folder, stage, split.framework)
            steps.append(Step(stage, chosen.load(part.folder, part.card)))
    return CnModel(key, whole.card, tuple(steps[:position]), split.dense, tuple(steps[position:]))


def load_following(
    key: str, folder: Path, settings: ServingSettings, *, log: Callable[[str], None]
) -> tuple[CnModel, Sparse]:
    """Of a model that follows its job: its rows, and what its HNs run. No program runs here."""
    card = halves.part(folder).card
    apart = card.apart
    _, dense = halves.following(folder)
    assert apart is not None, "it follows a job"
    return CnModel(key, card, (), dense, ()), open_sparse(folder, card, apart, settings, log=log)
