"""Read a snapshot without recmesh: python read_snapshot.py <storage>/checkpoints/<job>/<snapshot>"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
from safetensors.numpy import load


def read(folder):
    """({table: {id: values}}, {dense block: array}) of a snapshot and those that it builds on; ValueError: damaged."""
    manifest, marker = (Path(folder) / "manifest.json").read_bytes(), (Path(folder) / "COMMITTED").read_bytes()
    check(manifest, json.loads(marker)["manifest_sha256"])
    older = [Path(folder).parent / f"{link['snapshot']:08d}" for link in json.loads(manifest).get("chain", [])]
    tables, chunks, shapes = {}, {}, {}
    for part in [part for level in [*reversed(older), Path(folder)] for part in sorted(level.glob("ps-*"))]:
        text = (part / "part.json").read_bytes()
        check(text, json.loads((part / "receipt.json").read_bytes())["part_json_sha256"])
        document = json.loads(text)
        if document["version"] not in (1, 2):
            raise ValueError(f"{part} has version {document['version']}")
        data = {f["name"]: check((part / f["name"]).read_bytes(), f["sha256"]) for f in document["files"]}
        shapes |= {block["name"]: block["shape"] for block in document["dense"]}
        for group in document["groups"]:
            for file in group["tables"]:
                name = document["tables"][file["table"]]["name"]
                table = tables.setdefault(name, {})
                if not document.get("base"):  # all rows of its slots: what older snapshots have of them is over
                    for id_ in [id_ for id_ in table if any(lo <= slot(id_, name) < hi for lo, hi in group["slots"])]:
                        del table[id_]
                if "removed" in file:
                    for id_ in pa.ipc.open_file(data[file["removed"]["file"]]).read_all()["id"].to_pylist():
                        table.pop(id_, None)
                rows = pa.ipc.open_file(data[file["file"]]).read_all()
                table.update(zip(rows["id"].to_pylist(), rows["values"].to_pylist(), strict=True))
            for key, values in load(data[group["dense"]["file"]]).items():
                if not key.endswith((".state", ".updates")):
                    block, _, chunk = key.rpartition("/")
                    chunks.setdefault(block, {})[int(chunk)] = values
    whole = {block: np.concatenate([found[n] for n in sorted(found)]) for block, found in chunks.items()}
    return tables, {block: values.reshape(shapes[block]) for block, values in whole.items()}


def check(data, sha256):
    """The bytes, when they have this checksum."""
    if hashlib.sha256(data).hexdigest() != sha256:
        raise ValueError("a file of the snapshot is damaged")
    return data


def mix(x):
    """The first output of SplitMix64 seeded with x."""
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) % 2**64
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) % 2**64
    return x ^ x >> 31


def slot(id_, table):
    """The slot of an id: the top 12 bits of its hash with the table's salt."""
    fnv = 0xCBF29CE484222325
    for byte in table.encode():
        fnv = ((fnv ^ byte) * 0x100000001B3) % 2**64
    return mix(id_ % 2**64 ^ mix(fnv)) >> 52


if __name__ == "__main__":
    tables, dense = read(sys.argv[1])
    print(json.dumps({"rows": {name: len(rows) for name, rows in tables.items()},
                      "dense": {name: block.shape for name, block in dense.items()}}))
