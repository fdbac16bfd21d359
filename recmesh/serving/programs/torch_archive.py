"""What a saved program may hold: tensors and known operators, nothing that runs code when it is read."""

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from recmesh.runtime.errors import InvalidArgument

_COMPILED = "data/aotinductor/"
_CONFIGS = re.compile(r"data/(weights|constants)/.*config\.json")
_PROGRAMS = re.compile(r"models/.*\.json")
_PLAIN_PAYLOAD = re.compile(r"(weight|tensor)_\d+")
_OPERATOR = re.compile(r"torch\.ops\.\w+\.\w+(\.\w+)?|torch\._?sym_\w+|(_operator|math)\.\w+")
_FORMULA = re.compile(r"([\w\s+\-*/%(),.<>=!&|~]|'\w+'|'-?\d+\.\d*(e[+-]?\d+)?')*")
_ATTRIBUTE = re.compile(r"(?<!\d)\.|\.(?!\d)|__")


def check(path: Path) -> None:
    """InvalidArgument unless the archive can be read without unpickling objects or running code."""
    try:
        with zipfile.ZipFile(path) as archive:
            if "version" in archive.namelist():
                raise _bad("is of an older format; save it again with torch.export.save")
        reader = torch._C.PyTorchFileReader(str(path))  # torch's own view of the archive decides
        names = [str(name) for name in reader.get_all_records()]
        for name in names:
            if name.startswith(_COMPILED):
                raise _bad("holds compiled code")
            if _CONFIGS.fullmatch(name):
                _check_payloads(json.loads(reader.get_record(name)))
            elif _PROGRAMS.fullmatch(name):
                _check_program(json.loads(reader.get_record(name)))
    except (RuntimeError, OSError, ValueError, zipfile.BadZipFile) as error:
        raise _bad(f"is no archive of torch.export.save: {str(error).partition(chr(10))[0][:200]}") from None


def _check_payloads(document: Any) -> None:
    for key, payload in _fields(document):
        if (key == "use_pickle" and payload is not False) or (
            key == "path_name" and not _PLAIN_PAYLOAD.fullmatch(str(payload))
        ):
            raise _bad("holds pickled objects; only plain tensors are loaded")


def _check_program(document: Any) -> None:
    for key, value in _fields(document):
        if not isinstance(value, str):
            continue
        if key == "target" and value.startswith(("torch", "_operator", "math")):
            if not _OPERATOR.fullmatch(value) or ".__" in value:
                raise _bad(f"calls {value[:100]!r}, which is no operator")
        elif key == "expr_str" and (not _FORMULA.fullmatch(value) or _ATTRIBUTE.search(value)):
            raise _bad(f"has the size {value[:100]!r}, which is no formula")


def _fields(document: Any) -> Iterator[tuple[str, Any]]:
    """All keys and values, at any depth."""
    waiting = [document]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            yield from item.items()
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)


def _bad(reason: str) -> InvalidArgument:
    return InvalidArgument(f"the program {reason}", reason="BAD_MODEL_FOLDER")
