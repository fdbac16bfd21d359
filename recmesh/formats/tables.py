"""Tables of a served model as files to be mapped: docs/formats/tables.md. Readable with numpy and safetensors alone.

    tables.json | 0.ids.npy, 0.rows.npy, 1.ids.npy, ... | dense.safetensors

A folder is written beside its place and renamed: who finds it finds all of it.
"""

import hashlib
import json
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

FORMAT, VERSION = "recmesh.tables", 1
FILE = "tables.json"
DENSE = "dense.safetensors"
_HASH_BYTES = 16 << 20

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]
Dense = Mapping[str, NDArray[np.float32]]


class TablesError(ValueError):
    """Files are not what they should be; the message names file and reason."""


@dataclass(frozen=True, slots=True)
class Table:
    """ids ascending, each once; rows float32 [ids, dim]. Both are mapped, not read."""

    ids: Ids
    rows: Rows

    def find(self, wanted: Ids) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Which of the ids are here, and their places (of the others any)."""
        if not len(self.ids):
            return np.zeros(len(wanted), np.bool_), np.zeros(len(wanted), np.int64)
        places = np.minimum(np.searchsorted(self.ids, wanted), len(self.ids) - 1)
        return self.ids[places] == wanted, places


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables and dense blocks of one snapshot."""

    job_id: str
    gen: int
    snapshot: int
    tables: Mapping[str, Table]
    dense: Dense
    """In memory."""


def write(
    folder: Path,
    *,
    job_id: str,
    gen: int,
    snapshot: int,
    tables: Mapping[str, tuple[Ids, Rows]],
    dense: Dense,
) -> None:
    """A new folder; ids must ascend. FileExistsError when it is there by then: of several writers one succeeds."""
    if folder.exists():
        raise FileExistsError(f"{folder} is there already")
    partial = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    partial.mkdir(parents=True)
    try:
        _fill(partial, job_id=job_id, gen=gen, snapshot=snapshot, tables=tables, dense=dense)
        try:
            partial.rename(folder)
        except OSError as error:                 # that a folder is there has several error numbers
            if folder.exists():
                raise FileExistsError(f"{folder} was written by somebody else meanwhile") from error
            raise
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _fill(
    folder: Path, *, job_id: str, gen: int, snapshot: int, tables: Mapping[str, tuple[Ids, Rows]], dense: Dense
) -> None:
    listed: list[dict[str, Any]] = []
    for number, (name, (ids, rows)) in enumerate(tables.items()):
        if len(ids) > 1 and not (ids[1:] > ids[:-1]).all():
            raise TablesError(f"table {name!r}: its ids do not ascend")
        files = {"ids_file": f"{number}.ids.npy", "rows_file": f"{number}.rows.npy"}
        np.save(folder / files["ids_file"], np.ascontiguousarray(ids, "<i8"), allow_pickle=False)
        np.save(folder / files["rows_file"], np.ascontiguousarray(rows, "<f4"), allow_pickle=False)
        listed.append({"name": name, "dim": int(rows.shape[1]), "rows": len(ids), **files})
    save_file({name: np.asarray(block, np.float32, order="C") for name, block in dense.items()}, folder / DENSE)
    names = sorted(path.name for path in folder.iterdir())
    document = {
        "format": FORMAT, "version": VERSION, "job_id": job_id, "gen": gen, "snapshot": snapshot, "tables": listed,
        "files": [
            {"name": name, "size_bytes": (folder / name).stat().st_size, "sha256": _digest(folder / name)}
            for name in names
        ],
    }
    (folder / FILE).write_text(json.dumps(document, indent=1))


def read(folder: Path, *, check: bool = True) -> Tables:
    """Tables mapped, dense blocks in memory; TablesError when something is missing or damaged.

    `check`: compare every checksum, which reads the files once.
    """
    try:
        document = json.loads((folder / FILE).read_bytes())
        if (document["format"], document["version"]) != (FORMAT, VERSION):
            raise TablesError(f"{folder / FILE} is {document['format']} version {document['version']}")
        for file in document["files"]:
            _verify(folder / str(file["name"]), int(file["size_bytes"]), str(file["sha256"]), check=check)
        tables = {str(item["name"]): _table(folder, item) for item in document["tables"]}
        return Tables(
            str(document["job_id"]), int(document["gen"]), int(document["snapshot"]), tables,
            load_file(folder / DENSE),
        )
    except TablesError:
        raise
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise TablesError(f"{folder}: {error!r}") from error


def _table(folder: Path, item: Mapping[str, Any]) -> Table:
    ids = _mapped(folder / str(item["ids_file"]), "<i8", empty=not item["rows"])
    rows = _mapped(folder / str(item["rows_file"]), "<f4", empty=not item["rows"])
    if ids.shape != (item["rows"],) or rows.shape != (item["rows"], item["dim"]):
        raise TablesError(f"{folder}: table {item['name']!r} is not of the shape that {FILE} says")
    return Table(ids, rows)


def _mapped(path: Path, dtype: str, *, empty: bool) -> NDArray[Any]:
    # Nothing cannot be mapped.
    found: NDArray[Any] = np.load(path, mmap_mode=None if empty else "r", allow_pickle=False)
    if found.dtype != np.dtype(dtype):
        raise TablesError(f"{path} holds {found.dtype}, not {dtype}")
    return found


def _verify(path: Path, size_bytes: int, sha256: str, *, check: bool) -> None:
    if path.stat().st_size != size_bytes:
        raise TablesError(f"{path} has {path.stat().st_size} bytes, not {size_bytes}")
    if check and _digest(path) != sha256:
        raise TablesError(f"{path} does not have the checksum {sha256}")


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(_HASH_BYTES):
            digest.update(data)
    return digest.hexdigest()
