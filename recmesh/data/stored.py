"""The materialised cache: decoded tasks as Arrow IPC files, written once and read back by mapping them into memory.

    <folder>/<fingerprint>/<slice and order>.arrow      one row of lists, one list per array

A file appears by a rename, so that readers of several processes see it whole or not at all; what is in it follows
from its name. Everything here is for speed: whatever goes wrong is logged, and rows are read from their files.
"""

import hashlib
import json
import os
import re
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from recmesh.data.decoded import Decoded
from recmesh.data.records import Batch, FileSlice, IdColumn
from recmesh.runtime.telemetry import get_logger
from recmesh.spec.dataset import DatasetSpec
from recmesh.spec.fingerprint import reading_fingerprint

_log = get_logger(__name__)
_SWEEP_SHARE = 1 / 16
"""Of the limit: after so many written bytes a process looks whether all files together are too large."""
_OURS = re.compile(r"[0-9a-f]{32}/(?:[0-9a-f]{40}\.arrow|\.[0-9a-f]{40}\.[0-9a-f]{32}\.new)")
"""A file of a cache, within its folder."""
_ABANDONED_S = 3600.0
"""A file that is still being written after it is nobody's."""


class StoredTasks:
    """Decoded tasks of one way of reading. Safe to share between threads and processes."""

    def __init__(self, folder: Path, fingerprint: str, *, limit_bytes: int) -> None:
        self._root, self._folder, self._limit_bytes = folder, folder / fingerprint[:32], limit_bytes
        self._lock = threading.Lock()
        self._written_bytes = 0
        self._is_warned = False
        self.hits = 0

    def get(self, file: FileSlice, order_seed: int, make: Callable[[], Decoded]) -> Decoded:
        """From its file, else made and stored."""
        path = self._folder / f"{_key(file, order_seed)}.arrow"
        found = self._read(path)
        if found is not None:
            self.hits += 1
            return found
        made = make()
        self._write(path, made)
        return made

    def _read(self, path: Path) -> Decoded | None:
        try:
            found = read_decoded(path)
        except FileNotFoundError:
            return None
        except (OSError, pa.ArrowException, KeyError, ValueError, TypeError, IndexError) as error:
            self._warn(f"{path} cannot be read: {error}")
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):                 # another user's, or on a disk that is only read
            os.utime(path)                      # the sweep goes by the last use
        return found

    def _write(self, path: Path, made: Decoded) -> None:
        aside = path.with_name(f".{path.stem}.{uuid.uuid4().hex}.new")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_decoded(aside, made)
            size_bytes = aside.stat().st_size
            aside.rename(path)
        except (OSError, pa.ArrowInvalid) as error:
            self._warn(f"{path} cannot be written: {error}")
            with suppress(OSError):
                aside.unlink()
            return
        with self._lock:
            self._written_bytes += size_bytes
            is_due = self._written_bytes > self._limit_bytes * _SWEEP_SHARE
            if is_due:
                self._written_bytes = 0
        if is_due:
            sweep(self._root, limit_bytes=self._limit_bytes)

    def _warn(self, text: str) -> None:
        if not self._is_warned:
            self._is_warned = True
            _log.warning("the materialised cache does without: %s", text)


def stored_tasks(spec: DatasetSpec, *, code: str) -> StoredTasks | None:
    """The dataset's cache, where it asks for one and can have it."""
    if spec.cache is None:
        return None
    fingerprint = reading_fingerprint(spec, code=code)
    if fingerprint is None:
        _log.warning("no materialised cache: features call functions of code that is not packed")
        return None
    return StoredTasks(Path(spec.cache.folder), fingerprint, limit_bytes=spec.cache.limit)


def sweep(root: Path, *, limit_bytes: int) -> int:
    """Removes files, those first that were not used for longest, until the rest is within the limit; returns how many.

    Several processes may sweep at once. A file that is mapped stays readable to whoever has it.
    """
    found: list[tuple[float, int, Path]] = []
    newest = 0.0
    for path in root.glob("*/*"):
        with suppress(OSError):
            state = path.stat()
            newest = max(newest, state.st_mtime)
            if _OURS.fullmatch(f"{path.parent.name}/{path.name}"):      # users' own files may lie beside
                found.append((state.st_mtime, state.st_size, path))
    total, removed = sum(size for _, size, _ in found), 0
    for used_at, size, path in sorted(found):
        is_abandoned = path.suffix == ".new" and newest - used_at > _ABANDONED_S
        if is_abandoned or (total > limit_bytes and path.suffix == ".arrow"):
            with suppress(OSError):
                path.unlink()
                removed += 1
            total -= size
    return removed


def _key(file: FileSlice, order_seed: int) -> str:
    text = json.dumps([
        file.uri, file.size_bytes, file.etag, file.first_row, file.rows, file.byte_lo, file.byte_hi, file.view,
        order_seed,
    ])
    return hashlib.sha256(text.encode()).hexdigest()[:40]


# ---- files


def write_decoded(path: Path, made: Decoded) -> None:
    """One record batch of one row; raises OSError."""
    arrays, head = _arrays(made)
    columns = {name: _one_list(values) for name, values in arrays.items()}
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    schema = batch.schema.with_metadata({"recmesh": json.dumps(head)})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(batch.replace_schema_metadata(schema.metadata))


def read_decoded(path: Path) -> Decoded:
    """Arrays are read-only views of the mapped file. OSError, pa.ArrowInvalid, KeyError, ValueError."""
    with pa.memory_map(str(path)) as file:
        reader = pa.ipc.open_file(file)
        head = json.loads((reader.schema.metadata or {})[b"recmesh"])
        batch = reader.get_batch(0)
    arrays = {name: batch.column(name).values.to_numpy() for name in batch.schema.names}
    size = int(head["size"])
    ids = {
        name: IdColumn(arrays[f"ids {name}"], arrays.get(f"offsets {name}"), arrays.get(f"weights {name}"))
        for name in head["ids"]
    }
    batch_made = Batch(
        size, ids, arrays["dense"].reshape(size, head["dense"]), arrays["labels"].reshape(size, head["labels"]),
        arrays.get("weight"), head["kind"],
    )
    return Decoded(batch_made, arrays.get("places"), arrays["bad"])


def _arrays(made: Decoded) -> tuple[dict[str, Any], dict[str, Any]]:
    batch = made.batch
    arrays: dict[str, Any] = {}
    for name, column in batch.ids.items():
        arrays |= {f"ids {name}": column.values, f"offsets {name}": column.offsets, f"weights {name}": column.weights}
    arrays |= {"dense": batch.dense, "labels": batch.labels, "weight": batch.weight, "places": made.places,
               "bad": made.bad}
    head = {
        "kind": batch.kind, "size": batch.size, "ids": list(batch.ids), "dense": batch.dense.shape[1],
        "labels": batch.labels.shape[1],
    }
    return {name: values for name, values in arrays.items() if values is not None}, head


def _one_list(values: Any) -> Any:
    flat = np.ascontiguousarray(values).reshape(-1)
    return pa.LargeListArray.from_arrays(pa.array([0, flat.size], pa.int64()), pa.array(flat))
