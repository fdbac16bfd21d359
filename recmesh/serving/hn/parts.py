"""What an HN runs of a model's folder: the whole, a dense half, or the program of a model that follows its job."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recmesh.runtime.errors import NotFound
from recmesh.serving import halves
from recmesh.serving.apart import Apart
from recmesh.serving.card import ModelCard
from recmesh.serving.fresh.program import open_fresh
from recmesh.serving.hn.followed import Followed
from recmesh.serving.programs import Framework, Program
from recmesh.serving.settings import ServingSettings


@dataclass(frozen=True, slots=True)
class Chosen:
    """A part of a model."""

    part: halves.Part
    can_batch: bool
    """Whether its requests may be put together."""
    digest: str = ""
    """Of a half."""
    half_of: Apart | None = None
    """Of a half of a model that follows its job: how its tables lie beside it, in CNs."""


def chosen(folder: Path, which: str) -> Chosen:
    """`whole` or `dense`. NotFound: there is no such part."""
    if which == "whole":
        found = halves.part(folder)
        return Chosen(found, _is_batched(found.card))
    if which != "dense":
        raise NotFound(f"an HN runs the part 'dense' or 'whole', not {which!r}", reason="UNKNOWN_PART")
    if halves.is_following(folder):
        whole = halves.part(folder).card
        half, stage = halves.following(folder)
        return Chosen(half, _is_batched(whole), stage.sha256, whole.apart)
    split = halves.manifest_of(folder)
    half = halves.stage(folder, split.dense, split.framework)
    return Chosen(half, split.batching.possible, split.dense.sha256)


def opened(
    framework: Framework, wanted: Chosen, settings: ServingSettings, *, log: Callable[[str], None]
) -> Program:
    """Read; a model with its tables beside it with them, unless they are in CNs."""
    part = wanted.part
    apart = wanted.half_of or part.card.apart
    program = framework.load(part.folder, part.card.program, device=framework.device(), tunable=apart is not None)
    if apart is None:
        return program
    tunable: Any = program                       # it was loaded as one
    if wanted.half_of is not None:
        return Followed(tunable, apart)
    return open_fresh(tunable, part.folder, part.card, apart, settings, log=log)


def _is_batched(card: ModelCard) -> bool:
    return all(bool(spec.shape) and spec.shape[0] == -1 for spec in (*card.inputs, *card.outputs))
