"""Folders of exported models: found, confined to the storage root, and their `model.json` checked."""

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import orjson

from recmesh.runtime.errors import InvalidArgument, NotFound, Violation
from recmesh.serving.card import ModelCard
from recmesh.serving.settings import ServingSettings
from recmesh.serving.split import manifest
from recmesh.spec.namespaces import NAMESPACE_END

MAX_CARD_BYTES = 4 << 20
CARD, SAVED_MODEL, PROGRAM = "model.json", "saved_model.pb", ".pt2"
CHECKPOINTS = "model.json.apart.checkpoints"


@dataclass(frozen=True, slots=True)
class Foreign:
    """A saved program without a `model.json`."""

    framework: str
    path: Path
    """A SavedModel's folder, or a `.pt2` file."""
    file: Path
    """The file in which the program itself is."""


class ModelFolders:
    """Model folders under one root. All calls block: they read the disk."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._outside = (
            f"lies outside the storage root {self._root}: copy it there, or change the root (RECMESH_STORAGE_URI of "
            "the gateway; `storage` in config.toml of a mesh of `recmesh up`)"
        )

    def resolve(self, uri: str, *, namespace: str = "") -> Path:
        """The folder that a URI means, after following links.

        InvalidArgument when it lies outside the storage root, or anything in it points there: whoever may
        register a model must not be able to read other files of the machine by it. With a namespace, outside
        `namespaces/NAMESPACE` and `models/NAMESPACE--...`, where its jobs' models are.
        """
        path = (self._root / _local(uri)).resolve()
        if path == self._root or not path.is_relative_to(self._root):
            raise _refused(uri, self._outside)
        if not self._is_inside(path, namespace):
            raise _refused(uri, f"lies outside namespaces/{namespace} and models/{namespace}--... of the storage")
        if not path.is_dir() and not (path.is_file() and path.suffix == PROGRAM):
            raise NotFound(f"model folder {uri} is not there", reason="NO_MODEL_FOLDER")
        waiting, seen = [path], set[Path]()
        while waiting:                      # folders that links lead to are looked into, too
            seen.add(folder := waiting.pop())
            for parent, folders, files in os.walk(folder):
                for name in (*folders, *files):
                    item = Path(parent, name)
                    if not item.is_symlink():
                        continue
                    target = item.resolve()
                    if not self._is_inside(target, namespace):
                        where = f"namespace {namespace}" if namespace else "the storage root"
                        raise _refused(uri, f"holds a link out of {where}: {item.relative_to(folder)}")
                    if target not in seen and target.is_dir():
                        waiting.append(target)
        return path

    def foreign(self, path: Path, *, framework: str = "") -> "Foreign | None":
        """The program at a resolved path that has no `model.json`; None when it has one.

        `framework` chooses where there are programs of two. InvalidArgument when there is none, or that is not said.
        """
        if path.is_file():
            return Foreign("torch", path, path)
        if (path / CARD).exists():
            return None
        found = [
            Foreign("tensorflow", program, program / SAVED_MODEL) for program in (path, path / "saved_model")
            if (program / SAVED_MODEL).is_file()
        ][:1]
        files = sorted(path.glob(f"*{PROGRAM}"))
        if len(files) == 1:
            found.append(Foreign("torch", files[0], files[0]))
        found = [each for each in found if each.framework == framework] or found
        if len(found) == 1:
            return found[0]
        if found:
            raise InvalidArgument(
                f"model folder {path} holds {found[0].path.name} and {found[1].path.name}",
                reason="BAD_MODEL_FOLDER",
                violations=[Violation("framework", "which one is meant: tensorflow or torch")],
            )
        what = f"{len(files)} files {PROGRAM}" if files else f"no {SAVED_MODEL}, saved_model/ or {PROGRAM} file"
        raise InvalidArgument(f"model folder {path} has no {CARD}, and {what}", reason="BAD_MODEL_FOLDER")

    def home_of(self, name: str, program: "Foreign", *, namespace: str = "") -> Path:
        """The folder in which a foreign program gets its `model.json` as the model of that name; another one when its
        file has changed."""
        stat = program.file.stat()
        named = f"{name}\0{program.path}\0{stat.st_size}\0{stat.st_mtime_ns}"
        base = self._root / "namespaces" / namespace if namespace else self._root
        return base / "foreign" / hashlib.sha256(named.encode()).hexdigest()[:24]

    def adopt(self, program: "Foreign", home: Path, card: Mapping[str, Any]) -> None:
        """Make that folder: `model.json`, and a link to the program, which stays as and where it is."""
        ModelCard.parse(card)
        home.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".new-", dir=home.parent))
        try:
            made.chmod(0o755)
            name = "saved_model" if program.framework == "tensorflow" else f"model{PROGRAM}"
            (made / name).symlink_to(program.path)
            document = {**card, "origin": str(program.path.relative_to(self._root))}
            (made / CARD).write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
            made.rename(home)
        except OSError:
            if not (home / CARD).exists():          # else somebody was faster
                raise
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def take_up_halves(self, folder: Path, *, namespace: str = "") -> None:
        """Where a folder only links to its program: link to the halves, too, that lie beside the program by now.

        InvalidArgument as of `resolve`.
        """
        own = folder / manifest.FOLDER
        for name in manifest.PROGRAMS.values():
            link = folder / name
            if own.is_symlink() or own.exists() or not link.is_symlink():
                continue
            program = link.resolve()
            there = program.parent / manifest.FOLDER
            if program.name == name and (there / manifest.FILE).is_file():      # only of this name it can be split
                self.resolve(str(there), namespace=namespace)
                with contextlib.suppress(FileExistsError):
                    own.symlink_to(there)

    def _is_inside(self, path: Path, namespace: str) -> bool:
        if not path.is_relative_to(self._root):
            return False
        if not namespace:
            return True
        first, second, *_ = (*path.relative_to(self._root).parts, "", "")
        return (first, second) == ("namespaces", namespace) or (
            first == "models" and second.startswith(namespace + NAMESPACE_END)
        )

    def settings(self, folder: Path, override: Mapping[str, Any]) -> ServingSettings:
        """How the model is to be served: `serving` of its `model.json`, and what goes before it."""
        given = self._document(folder).get("serving") or {}
        if not isinstance(given, dict):
            raise InvalidArgument("model.json: serving is no object", reason="BAD_MODEL_CARD")
        return ServingSettings.parse({**given, **override}, path="model.json.serving")

    def card(self, folder: Path, *, jobs: Collection[str] | None = None) -> ModelCard:
        """The folder's checked `model.json`; what it follows lies below the root, too.

        With `jobs` it may follow these alone: their snapshots hold rows that not everybody may see.
        """
        card = ModelCard.parse(self._document(folder))
        if card.apart is not None and card.apart.checkpoints:
            place = card.apart.checkpoints
            path = _followed(place)
            if not path.is_relative_to(self._root):
                raise _refused(place, self._outside, field=CHECKPOINTS)
            if jobs is not None and (card.apart.job_id not in jobs or path != self._checkpoints(card.apart.job_id)):
                raise _refused(
                    place, f"is not checkpoints/{card.apart.job_id} of a job that exports to the model's namespace",
                    field=CHECKPOINTS,
                )
        return card

    def _checkpoints(self, job_id: str) -> Path:
        return self._root / "checkpoints" / job_id

    def _document(self, folder: Path) -> Any:
        path = folder / CARD
        try:
            size = path.stat().st_size
            if size > MAX_CARD_BYTES:
                raise InvalidArgument(f"model.json has {size} bytes", reason="BAD_MODEL_CARD")
            return orjson.loads(path.read_bytes())
        except FileNotFoundError:
            raise InvalidArgument(
                f"model folder {folder} has no model.json", reason="BAD_MODEL_FOLDER"
            ) from None
        except orjson.JSONDecodeError as error:
            raise InvalidArgument(f"model.json is not JSON: {error}", reason="BAD_MODEL_CARD") from None


def _local(uri: str) -> str:
    if "://" not in uri:
        return uri
    parts = urlsplit(uri)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise _refused(uri, f"{parts.scheme}:// is not served from; copy the model to the storage root")
    return unquote(parts.path)


def _followed(place: str) -> Path:
    """The folder as the model server will read it, by fsspec, which knows homes, chains of file systems and relative
    paths, and no escapes: only what it cannot take for another folder than this is taken."""
    text = place.removeprefix("file://")
    if not text.startswith("/") or "::" in text or "://" in text:
        raise _refused(place, "is neither an absolute path nor file:// and one", field=CHECKPOINTS)
    return Path(text).resolve()


def _refused(uri: str, why: str, *, field: str = "uri") -> InvalidArgument:
    return InvalidArgument(
        f"model folder {uri} is not taken: {why}",
        reason="OUTSIDE_STORAGE",
        violations=[Violation(field, why)],
    )
