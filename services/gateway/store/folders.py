"""Folders of exported models: found, confined to the storage root, and their `model.json` checked."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import orjson

from recmesh.runtime.errors import InvalidArgument, NotFound, Violation
from recmesh.serving.card import ModelCard
from recmesh.serving.settings import ServingSettings

MAX_CARD_BYTES = 4 << 20


class ModelFolders:
    """Model folders under one root. All calls block: they read the disk."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()

    def resolve(self, uri: str) -> Path:
        """The folder that a URI means, after following links.

        InvalidArgument when it lies outside the storage root, or anything in it points there: whoever may
        register a model must not be able to read other files of the machine by it.
        """
        path = (self._root / _local(uri)).resolve()
        if path == self._root or not path.is_relative_to(self._root):
            raise _refused(uri, "lies outside the storage root")
        if not path.is_dir():
            raise NotFound(f"model folder {uri} is not there", reason="NO_MODEL_FOLDER")
        for parent, folders, files in os.walk(path):
            for name in (*folders, *files):
                item = Path(parent, name)
                if item.is_symlink() and not item.resolve().is_relative_to(self._root):
                    raise _refused(uri, f"holds a link out of the storage root: {item.relative_to(path)}")
        return path

    def settings(self, folder: Path, override: Mapping[str, Any]) -> ServingSettings:
        """How the model is to be served: `serving` of its `model.json`, and what goes before it."""
        given = self._document(folder).get("serving") or {}
        if not isinstance(given, dict):
            raise InvalidArgument("model.json: serving is no object", reason="BAD_MODEL_CARD")
        return ServingSettings.parse({**given, **override}, path="model.json.serving")

    def card(self, folder: Path) -> ModelCard:
        """The folder's checked `model.json`."""
        return ModelCard.parse(self._document(folder))

    def _document(self, folder: Path) -> Any:
        path = folder / "model.json"
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


def _refused(uri: str, why: str) -> InvalidArgument:
    return InvalidArgument(
        f"model folder {uri} is not taken: {why}",
        reason="OUTSIDE_STORAGE",
        violations=[Violation("uri", why)],
    )
