"""A model's folder as its parts are served: whole, or the stages that `split/split.json` names.

A model that follows its job needs no `split/`: its program takes rows, so that this is where it is cut. Rows are the
CN's matter, the program with the dense blocks is the HN's.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from recmesh.runtime.errors import DataLoss, FailedPrecondition, InvalidArgument, NotFound
from recmesh.serving.card import ModelCard
from recmesh.serving.settings import ServingSettings
from recmesh.serving.split import manifest
from recmesh.serving.split.manifest import Manifest, Stage


@dataclass(frozen=True, slots=True)
class Part:
    """A program's folder, what its `model.json` says of it, and how it wants to be served."""

    folder: Path
    card: ModelCard
    settings: ServingSettings


def part(folder: Path) -> Part:
    """InvalidArgument when there is no `model.json`, or it is wrong."""
    try:
        document = json.loads((folder / "model.json").read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{folder}/model.json cannot be read: {error}", reason="BAD_MODEL_FOLDER") from None
    card = ModelCard.parse(document)             # an object, or it would have said so
    return Part(folder, card, ServingSettings.parse(document.get("serving") or {}, path="model.json.serving"))


def stage(model: Path, which: Stage, framework: str) -> Part:
    """A stage's program; DataLoss when its files are not those that `split.json` names."""
    folder = model / manifest.FOLDER / which.program
    if manifest.digest(folder, framework) != which.sha256:
        raise DataLoss(
            f"the program of stage {which.name} is not what {manifest.FILE} says", reason="BAD_SPLIT"
        )
    return part(folder)


def manifest_of(model: Path) -> Manifest:
    """The model's `split.json`; FailedPrecondition when it is there, but says that the model is to be run whole."""
    found = manifest.load(model / manifest.FOLDER)
    if not found.is_split:
        raise FailedPrecondition(f"the model is not to be split: {found.why}", reason="NOT_SPLIT")
    return found


def following(model: Path) -> tuple[Part, Stage]:
    """Of a model that follows its job: its program as a part of its own, and as the stage that HNs run.

    Equal digests mean equal programs of one job, whose versions are the same by their numbers. FailedPrecondition: it
    follows none.
    """
    found = part(model)
    if found.card.apart is None:
        raise FailedPrecondition("the model's tables are in its program", reason="NOT_FRESH")
    program = found.card.program
    named = f"{found.card.apart.job_id}\0{manifest.digest(model, program.framework)}"
    dense = Stage(
        "dense", "hn", ".", tuple(spec.name for spec in program.inputs), tuple(spec.name for spec in program.outputs),
        hashlib.sha256(named.encode()).hexdigest(),
    )
    return Part(model, program, found.settings), dense


def is_following(model: Path) -> bool:
    """Whether its tables lie beside its program."""
    return (model / "model.json").is_file() and part(model).card.apart is not None


def is_split(model: Path, settings: ServingSettings) -> bool:
    """Whether to serve the model in halves. Raises why it cannot be where it must (`split: always`)."""
    return not why_whole(model, settings)


def why_whole(model: Path, settings: ServingSettings) -> str:
    """Why the model is served whole; empty where it is served in halves. Raises as `is_split`."""
    if settings.split == "never":
        return "serving.split is never"
    if is_following(model):
        is_wanted = settings.split == "always" or settings.freshness.halves
        return "" if is_wanted else "it follows its job, and serving.freshness.halves is not set"
    try:
        manifest_of(model)
    except NotFound:
        why = f"the model's folder has no {manifest.FOLDER}/{manifest.FILE}"
        if settings.split == "always":
            raise FailedPrecondition(f"serving.split is always, but {why}", reason="NOT_SPLIT") from None
        return why
    except FailedPrecondition as error:
        if settings.split == "always":
            raise
        return error.message
    return ""


def check_origin(model: Path, card: ModelCard, split: Manifest) -> None:
    """DataLoss when the halves are another model's: it was exported again, or its `model.json` names other inputs or
    outputs, and it was not split again."""
    if manifest.digest(model, split.framework) != split.model_sha256:
        raise DataLoss(
            f"{manifest.FOLDER}/ was made from another model than the one beside it; split the model again",
            reason="OTHER_MODEL",
        )
    sides = {
        "inputs": (split.inputs, [spec.name for spec in card.inputs]),
        "outputs": (split.outputs, [spec.name for spec in card.outputs]),
    }
    for what, (named, wanted) in sides.items():
        if set(named) != set(wanted):
            raise DataLoss(
                f"{manifest.FOLDER}/ has the {what} {', '.join(named)}, and the model {', '.join(wanted)}; "
                "split the model again",
                reason="OTHER_MODEL",
            )
