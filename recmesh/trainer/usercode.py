"""The user's code: fetched, checked, unpacked and found."""

import hashlib
import importlib
import io
import shutil
import sys
import tarfile
import traceback
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec

from recmesh.runtime.errors import DataLoss, Violation
from recmesh.spec.job import Model
from recmesh.trainer.exits import UserMistake

TORCH_ZOO = frozenset({"torch_dcn_v2", "dlrm", "mmoe", "din", "mtrm"})


def fetch(model: Model, *, storage_uri: str, work_dir: Path) -> None:
    """Puts the packed code on sys.path. DataLoss when the archive is not what its name says.

    An unpacked folder is used again: its name is the archive's hash and it appears by one rename.
    """
    if not model.code:
        return
    if not model.code.startswith("sha256:"):
        local = Path(model.code)
        if not local.is_dir():
            raise _mistake("model.code", f"there is no folder {model.code}; submit packs it")
        sys.path.insert(0, str(local.resolve()))
        return
    digest = model.code.removeprefix("sha256:")
    target = work_dir / f"code-{digest[:16]}"
    if not target.exists():
        with fsspec.open(f"{storage_uri.rstrip('/')}/code/{digest}.tar.gz", "rb") as file:
            archive = file.read()
        found = hashlib.sha256(archive).hexdigest()
        if found != digest:
            raise DataLoss(f"the stored code {digest[:12]}… has the hash {found[:12]}…")
        _unpack(archive, target)
    sys.path.insert(0, str(target))


def resolve(model: Model) -> Callable[[Any], None]:
    """The job's `main`. UserMistake names the module or function that is not there, or the error in it."""
    if model.zoo:
        family = "torch" if model.zoo in TORCH_ZOO else "keras"
        entry, path = f"recmesh.zoo.{family}.{model.zoo}:main", "model.zoo"
    else:
        entry, path = model.entrypoint or "", "model.entrypoint"
    module_name, _, function = entry.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise _mistake(path, f"there is no module {error.name}") from error
        raise _mistake(path, f"{module_name} imports {error.name}, which is not installed") from error
    except Exception as error:
        raise _mistake(path, f"importing {module_name} failed: {last_line(error)}") from error
    main = getattr(module, function, None)
    if not callable(main):
        raise _mistake(path, f"{module_name} has no function {function}")
    return main  # type: ignore[no-any-return]  # the user's; called with a Job


def last_line(error: BaseException) -> str:
    """An error in one line, with the place it was raised at."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:500]}{place}"


def seed_everything(seed: int) -> None:
    """Equal initial dense values in every process of a job, in whichever frameworks are loaded."""
    import random

    import numpy as np

    random.seed(seed)
    np.random.seed(seed % 2**32)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
    if "tensorflow" in sys.modules:
        sys.modules["tensorflow"].random.set_seed(seed)


def _unpack(archive: bytes, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_name(f"{target.name}.{uuid.uuid4().hex[:8]}")
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
            _extract(tar, scratch)
        scratch.rename(target)
    except OSError:
        if not target.exists():   # else another process with this folder was first
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)   # gone already, unless something failed


def _extract(tar: tarfile.TarFile, folder: Path) -> None:
    """What lies inside the folder, and nothing that reaches out of it (the gateway took no other archive)."""
    if hasattr(tarfile, "data_filter"):
        tar.extractall(folder, filter="data")
        return
    root = folder.resolve()                    # Python before 3.11.4, as Debian 12 has it
    root.mkdir(parents=True)
    for member in tar:
        place = (root / member.name).resolve()
        if not place.is_relative_to(root) or not (member.isfile() or member.isdir()):
            why = f"{member.name!r} is no file or folder of it; links need Python 3.11.4 or later"
            raise _mistake("model.code", why)
        if member.isdir():
            place.mkdir(parents=True, exist_ok=True)
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        content = tar.extractfile(member)
        assert content is not None             # it is a file
        with content, place.open("wb") as made:
            shutil.copyfileobj(content, made)


def _mistake(path: str, reason: str) -> UserMistake:
    return UserMistake("the model can't be loaded", violations=[Violation(path, reason)])
