"""A model's folder as its parts are served: whole, or the stages that `split/split.json` names."""

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


def is_split(model: Path, settings: ServingSettings) -> bool:
    """Whether to serve the model in halves. Raises why it cannot be where it must (`split: always`)."""
    if settings.split == "never":
        return False
    try:
        manifest_of(model)
    except NotFound:
        if settings.split == "always":
            raise FailedPrecondition(
                f"serving.split is always, but the model's folder has no {manifest.FOLDER}/{manifest.FILE}",
                reason="NOT_SPLIT",
            ) from None
        return False
    except FailedPrecondition:
        if settings.split == "always":
            raise
        return False
    return True


def check_origin(model: Path, split: Manifest) -> None:
    """DataLoss when the halves are another model's: it was exported again, and not split again."""
    if manifest.digest(model, split.framework) != split.model_sha256:
        raise DataLoss(
            f"{manifest.FOLDER}/ was made from another model than the one beside it; split the model again",
            reason="OTHER_MODEL",
        )
