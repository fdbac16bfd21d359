"""`split.json`: how a model was split, for those who run the halves. The format: docs/formats/split.md."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from recmesh.runtime.errors import DataLoss, InvalidArgument, NotFound, Violation

FORMAT, VERSION = "recmesh.split", 1
FILE = "split.json"
PICTURE = "cut.svg"
"""For people; nothing depends on it."""
FOLDER = "split"
"""Beside `model.json`."""
FRAMEWORKS = ("tensorflow", "torch")
PROGRAMS = {"tensorflow": "saved_model", "torch": "model.pt2"}
"""What a model or a stage of a framework is, inside its folder."""

Where = Literal["cn", "hn"]
Place = Literal["packed", "plain"]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor that enters or leaves a stage, an input or an output of the model among them."""

    name: str
    dtype: str
    """As in model.json: float32, int64, string, ..."""
    shape: tuple[int, ...]
    """-1: differs between requests."""
    batched: bool
    """The first dimension is the request's samples: requests can be put behind each other."""
    bytes: int
    """At the reference batch; of strings as they were in the reference inputs."""
    made_by: str = ""
    """The operator that makes it, for people; empty of the model's inputs."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A program of its own, with a folder of its own: the program and the `model.json` that describes it."""

    name: str
    where: Where
    program: str
    """Path of its folder, relative to `split.json`."""
    inputs: tuple[str, ...]
    """Tensors by name: the model's inputs, or what stages before have made."""
    outputs: tuple[str, ...]
    sha256: str = ""
    """Of the program's files, as `digest` computes it."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """What goes over the network at once."""

    sender: str
    """A stage's name."""
    receiver: str
    """A stage's name, or `client` for whoever asked (a CN, on behalf of it)."""
    packed: tuple[str, ...]
    """Small at the reference batch; what travels in one buffer is decided by the sizes of each request (frames.py)."""
    plain: tuple[str, ...]
    bytes: int
    """At the reference batch, without padding."""


@dataclass(frozen=True, slots=True)
class Batching:
    """Whether several requests can be one call of the HN's stage."""

    possible: bool
    why: str = ""
    """Why not."""
    max_error: float = 0.0
    """Largest difference of an output from those of single requests, relative to max(1, its size), as checked."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """All of `split.json`."""

    framework: str
    kind: Literal["split", "whole"]
    why: str
    """Of a whole model: why it is not split. Of a split one: what limits the cut."""
    model_sha256: str
    """Of the model that it came from; halves of another model must not be used."""
    inputs: tuple[str, ...]
    """The model's, by the names of its model.json (of a bare SavedModel: its signature's)."""
    outputs: tuple[str, ...]
    tensors: tuple[TensorInfo, ...] = ()
    stages: tuple[Stage, ...] = ()
    """In the order in which they run: of a split model [pre, ] dense [, post]; of a whole one none."""
    transfers: tuple[Transfer, ...] = ()
    batching: Batching = field(default_factory=lambda: Batching(possible=False))
    report: Mapping[str, Any] = field(default_factory=dict)
    """Figures for people; nothing depends on it."""

    @property
    def is_split(self) -> bool:
        """Whether there are halves to run."""
        return self.kind == "split"

    def tensor(self, name: str) -> TensorInfo:
        """By name; NotFound."""
        for each in self.tensors:
            if each.name == name:
                return each
        raise NotFound(f"{FILE} knows no tensor {name!r}")

    def stage(self, name: str) -> Stage:
        """By name; NotFound."""
        for each in self.stages:
            if each.name == name:
                return each
        raise NotFound(f"{FILE} knows no stage {name!r}")

    @property
    def dense(self) -> Stage:
        """The HN's stage; NotFound of a whole model."""
        return next((each for each in self.stages if each.where == "hn"), None) or self.stage("dense")

    def document(self) -> dict[str, Any]:
        """As it is written."""
        return {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}

    @classmethod
    def parse(cls, document: Any) -> Self:
        """Check a decoded `split.json`; InvalidArgument names every wrong field."""
        reader = _Reader()
        top = reader.mapping(document, FILE)
        if top.get("format") != FORMAT:
            reader.wrong(f"{FILE}.format", f"{top.get('format')!r} is not {FORMAT!r}")
        elif top.get("version") != VERSION:
            reader.wrong(f"{FILE}.version", f"{top.get('version')!r}: this recmesh reads {VERSION}")
        reader.raise_if_wrong()                     # of another format nothing else would make sense
        made = cls(
            framework=reader.one_of(top, "framework", FILE, FRAMEWORKS),
            kind=reader.one_of(top, "kind", FILE, ("split", "whole")),  # type: ignore[arg-type]  # one of them
            why=reader.text(top, "why", FILE),
            model_sha256=reader.text(top, "model_sha256", FILE),
            inputs=reader.names(top, "inputs", FILE),
            outputs=reader.names(top, "outputs", FILE),
            tensors=tuple(reader.each(top, "tensors", reader.tensor)),
            stages=tuple(reader.each(top, "stages", reader.stage)),
            transfers=tuple(reader.each(top, "transfers", reader.transfer)),
            batching=reader.batching(top.get("batching")),
            report=reader.mapping(top.get("report", {}), f"{FILE}.report"),
        )
        if not reader.violations:
            _check(made, reader)
        reader.raise_if_wrong()
        return made


def load(folder: Path) -> Manifest:
    """The manifest in a `split/` folder; NotFound without one, InvalidArgument when it is wrong."""
    file = folder / FILE
    try:
        document = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise NotFound(f"there is no {file}") from error
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{file} cannot be read: {error}", reason="BAD_SPLIT") from error
    return Manifest.parse(document)


def save(manifest: Manifest, folder: Path) -> None:
    """Writes `split.json`, readable by people; the folder must be there."""
    text = json.dumps(manifest.document(), indent=2, ensure_ascii=False)
    Manifest.parse(json.loads(text))                # what could not be read again is not written
    (folder / FILE).write_text(text + "\n", encoding="utf-8")


def digest(folder: Path, framework: str) -> str:
    """SHA-256 over names and content of a program's files, sorted by name; NotFound when there is none.

    `folder` holds `model.pt2` or `saved_model/`, as an exported model's and a stage's folder do.
    """
    root = folder / PROGRAMS[framework]
    files = sorted(path for path in root.rglob("*") if path.is_file()) if root.is_dir() else [root]
    found = hashlib.sha256()
    for path in files:
        if not path.is_file():
            raise NotFound(f"there is no {root}")
        found.update(path.relative_to(folder).as_posix().encode() + b"\0")
        with path.open("rb") as content:
            found.update(hashlib.file_digest(content, "sha256").digest())
    return found.hexdigest()


def check_files(manifest: Manifest, folder: Path, *, model: Path | None = None) -> None:
    """DataLoss when a stage's program, or the model's where it is given, is not the one that the manifest names."""
    for stage in manifest.stages:
        if digest(folder / stage.program, manifest.framework) != stage.sha256:
            raise DataLoss(f"the program of stage {stage.name} in {folder} is not what {FILE} says", reason="BAD_SPLIT")
    if model is not None and digest(model, manifest.framework) != manifest.model_sha256:
        raise DataLoss(f"{folder} is split from another model than the one in {model}", reason="OTHER_MODEL")


def _check(made: Manifest, reader: "_Reader") -> None:
    """That the stages can run in their order, and that all they exchange is described."""
    known = {each.name for each in made.tensors}
    if made.kind == "whole":
        if made.stages:
            reader.wrong(f"{FILE}.stages", "a whole model has none")
        return
    there = set(made.inputs)
    for index, stage in enumerate(made.stages):
        path = f"{FILE}.stages[{index}]"
        for name in stage.inputs:
            if name not in there:
                reader.wrong(f"{path}.inputs", f"nothing before it makes {name!r}")
        there |= set(stage.outputs)
    for name in made.outputs:
        if name not in there:
            reader.wrong(f"{FILE}.outputs", f"no stage makes {name!r}")
    for name in sorted(there - known):
        reader.wrong(f"{FILE}.tensors", f"{name!r} is not described")
    if [each.where for each in made.stages].count("hn") != 1:
        reader.wrong(f"{FILE}.stages", "exactly one must be on the HN")
    names = {each.name for each in made.stages}
    for index, transfer in enumerate(made.transfers):
        path = f"{FILE}.transfers[{index}]"
        for end in {transfer.sender, transfer.receiver} - names - {"client"}:
            reader.wrong(path, f"there is no stage {end!r}")
        for name in (*transfer.packed, *transfer.plain):
            if name not in known:
                reader.wrong(path, f"{name!r} is not described")


class _Reader:
    """Reads a decoded document field by field and notes all that is wrong with it."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []

    def wrong(self, path: str, reason: str) -> None:
        self.violations.append(Violation(path, reason))

    def raise_if_wrong(self) -> None:
        if self.violations:
            raise InvalidArgument(f"{FILE} is wrong", reason="BAD_SPLIT", violations=self.violations)

    def mapping(self, value: Any, path: str) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        self.wrong(path, "is no object")
        return {}

    def text(self, of: Mapping[str, Any], key: str, path: str) -> str:
        value = of.get(key)
        if isinstance(value, str):
            return value
        self.wrong(f"{path}.{key}", f"{value!r} is no text")
        return ""

    def one_of(self, of: Mapping[str, Any], key: str, path: str, allowed: Sequence[str]) -> str:
        value = of.get(key)
        if value in allowed:
            return str(value)
        self.wrong(f"{path}.{key}", f"{value!r} is none of {', '.join(allowed)}")
        return allowed[0]

    def whole(self, of: Mapping[str, Any], key: str, path: str) -> int:
        value = of.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        self.wrong(f"{path}.{key}", f"{value!r} is no whole number from 0 on")
        return 0

    def flag(self, of: Mapping[str, Any], key: str, path: str) -> bool:
        value = of.get(key)
        if isinstance(value, bool):
            return value
        self.wrong(f"{path}.{key}", f"{value!r} is neither true nor false")
        return False

    def names(self, of: Mapping[str, Any], key: str, path: str) -> tuple[str, ...]:
        value = of.get(key)
        if isinstance(value, list) and all(isinstance(item, str) and item for item in value):
            if len(set(value)) < len(value):
                self.wrong(f"{path}.{key}", "names something twice")
            return tuple(value)
        self.wrong(f"{path}.{key}", "is no list of names")
        return ()

    def each(self, of: Mapping[str, Any], key: str, read: Any) -> list[Any]:
        value = of.get(key)
        if not isinstance(value, list):
            self.wrong(f"{FILE}.{key}", "is no list")
            return []
        made = [
            read(self.mapping(item, f"{FILE}.{key}[{index}]"), f"{FILE}.{key}[{index}]")
            for index, item in enumerate(value)
        ]
        names = [each.name for each in made if hasattr(each, "name")]
        if len(set(names)) < len(names):
            self.wrong(f"{FILE}.{key}", "names something twice")
        return made

    def tensor(self, item: Mapping[str, Any], path: str) -> TensorInfo:
        shape = item.get("shape")
        if not isinstance(shape, list) or not all(
            isinstance(size, int) and not isinstance(size, bool) and size >= -1 for size in shape
        ):
            self.wrong(f"{path}.shape", f"{shape!r} is no list of sizes")
            shape = []
        return TensorInfo(
            self.text(item, "name", path), self.text(item, "dtype", path), tuple(shape),
            self.flag(item, "batched", path), self.whole(item, "bytes", path), self.text(item, "made_by", path),
        )  # fmt: skip

    def stage(self, item: Mapping[str, Any], path: str) -> Stage:
        program = self.text(item, "program", path)
        if not program or Path(program).is_absolute() or ".." in Path(program).parts:
            self.wrong(f"{path}.program", f"{program!r} is no path inside the folder")
        where = self.one_of(item, "where", path, ("cn", "hn"))
        return Stage(
            self.text(item, "name", path), where, program,  # type: ignore[arg-type]  # one of both
            self.names(item, "inputs", path), self.names(item, "outputs", path), self.text(item, "sha256", path),
        )  # fmt: skip

    def transfer(self, item: Mapping[str, Any], path: str) -> Transfer:
        return Transfer(
            self.text(item, "sender", path), self.text(item, "receiver", path), self.names(item, "packed", path),
            self.names(item, "plain", path), self.whole(item, "bytes", path),
        )  # fmt: skip

    def batching(self, value: Any) -> Batching:
        path = f"{FILE}.batching"
        item = self.mapping(value, path)
        error = item.get("max_error", 0.0)
        if not isinstance(error, int | float) or isinstance(error, bool) or error < 0:
            self.wrong(f"{path}.max_error", f"{error!r} is no number from 0 on")
            error = 0.0
        return Batching(self.flag(item, "possible", path), self.text(item, "why", path), float(error))
