"""Committed snapshots of an online job on disk, as ckptcache stores them, without a job."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from recmesh.formats import Ledger
from recmesh.formats.snapshot import PartDocument, RowColumns
from recmesh.formats.snapshot.document import FileDocument, GroupDocument, TableFile
from recmesh.formats.snapshot.rows import DenseChunk, dense_bytes, row_schema, write_removed, write_rows

TABLE, BLOCK, DIM = "item", "w", 1


class Snapshots:
    """Of one job with one parameter server: the table `item` of one column, the block `w` of one number."""

    def __init__(self, root: Path, *, job_id: str = "job") -> None:
        self.root, self.job_id = root, job_id
        root.mkdir(parents=True, exist_ok=True)
        self._chains: dict[int, list[dict[str, Any]]] = {}

    def commit(
        self, number: int, rows: Mapping[int, float], dense: float, *, base: int = 0, removed: tuple[int, ...] = (),
        gen: int = 1, frequency: int = 1, updates: int = 1, mark: bool = True,
    ) -> Path:  # fmt: skip
        """Whole without a base; else `rows` are those that changed since it. Without `mark` it is not committed yet."""
        folder = self.root / f"{number:08d}"
        part = folder / "ps-000"
        part.mkdir(parents=True)
        ids = np.array(sorted(rows), np.int64)
        values = np.array([[rows[int(id_)]] for id_ in ids], np.float32).reshape(-1, DIM)
        n = len(ids)
        columns = RowColumns(
            ids, values, np.zeros((n, 0), np.float32), np.full(n, updates, np.uint32),
            np.full(n, frequency, np.uint32), np.full(n, number, np.uint64),
        )
        with (part / "rows.arrow").open("wb") as file:
            write_rows(file, row_schema(TABLE, DIM, 0), [columns])
        if removed:
            with (part / "removed.arrow").open("wb") as file:
                write_removed(file, np.array(removed, np.int64))
        chunk = DenseChunk(BLOCK, 0, np.array([dense], np.float32), np.zeros(0, np.float32), 1)
        (part / "dense.safetensors").write_bytes(b"".join(bytes(data) for data in dense_bytes([chunk])))
        table = TableFile(0, "rows.arrow", n, "removed.arrow" if removed else "", len(removed))
        slots = np.ones(4096, np.bool_)
        document = PartDocument(
            self.job_id, gen, number, 0, 1,
            (GroupDocument(0, slots, Ledger([(0, 0, number)]), number, (table,), "dense.safetensors", 1),),
            ({"name": TABLE, "dim": DIM, "state_width": 0, "min_frequency": 2},), ({"name": BLOCK, "shape": [1]},),
            tuple(_described(path) for path in sorted(part.iterdir())), base,
        )
        (part / "part.json").write_text(document.to_json())
        chain = [{"snapshot": base, "ps": [0]}, *self._chains[base]] if base else []
        self._chains[number] = chain
        manifest = {
            "format": "recmesh.snapshot/1", "job_id": self.job_id, "gen": gen, "snapshot": number,
            "committed": float(number), "chain": chain, "parts": [{"ps": 0}],
        }
        (folder / "manifest.json").write_text(json.dumps(manifest))
        if mark:
            self.mark(number)
        return part

    def mark(self, number: int) -> None:
        """It is committed from here on."""
        folder = self.root / f"{number:08d}"
        digest = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
        (folder / "COMMITTED").write_text(json.dumps({"manifest_sha256": digest}))


def _described(path: Path) -> FileDocument:
    return FileDocument(path.name, path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
