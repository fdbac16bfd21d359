"""Read a snapshot without recmesh: python read_snapshot.py <storage>/checkpoints/<job>/<snapshot>"""

import hashlib
import json
import sys
from functools import reduce
from pathlib import Path

import numpy as np
import pyarrow as pa
from safetensors.numpy import load


def read(folder):
    """({table: {id: values}}, {dense block: array}); OSError, ValueError: a file is missing or damaged."""
    tables, blocks = {}, {}
    for path in reversed(parts(Path(folder).resolve())):
        part = document(path / "part.json", path / "receipt.json")
        if part["version"] not in (1, 2):
            raise ValueError(f"{path / 'part.json'} is of version {part['version']}")
        data = {file["name"]: sealed(path / file["name"], file["sha256"]) for file in part["files"]}
        for group in part["groups"]:
            for file in group["tables"]:
                name, new = part["tables"][file["table"]]["name"], pa.ipc.open_file(data[file["file"]]).read_all()
                rows, removed = tables.setdefault(name, {}), []
                if not part.get("base"):  # it is whole: what older snapshots have in its slots is over
                    removed = [id_ for id_ in rows if any(lo <= slot(id_, name) < hi for lo, hi in group["slots"])]
                elif "removed" in file:
                    removed = pa.ipc.open_file(data[file["removed"]["file"]]).read_all()["id"].to_pylist()
                for id_ in removed:
                    rows.pop(id_, None)
                rows.update(zip(new["id"].to_pylist(), new["values"].to_pylist(), strict=True))
            for key, values in load(data[group["dense"]["file"]]).items():
                block, _, chunk = key.rpartition("/")
                if chunk.isdigit():  # else it is optimizer state
                    blocks.setdefault(block, {})[int(chunk)] = values
    shapes = {block["name"]: block["shape"] for block in part["dense"]}
    return tables, {block: np.concatenate([values for _, values in sorted(chunks.items())]).reshape(shapes[block])
                    for block, chunks in blocks.items()}


def parts(folder):
    """The parts' folders of a committed snapshot, then of those that it builds on, nearest first."""
    manifest, found = document(folder / "manifest.json", folder / "COMMITTED"), []
    older = [(folder.parent / f"{link['snapshot']:08d}", link["ps"]) for link in manifest.get("chain", [])]
    for level, numbers in [(folder, [part["ps"] for part in manifest["parts"]]), *older]:
        document(level / "manifest.json", level / "COMMITTED")
        named = [level / f"ps-{ps:03d}" for ps in numbers]
        if wrong := {*named} ^ {*level.glob("ps-*")}:
            raise ValueError(f"{min(wrong)} is {'missing' if min(wrong) in named else 'no part of the snapshot'}")
        found += named
    return found


def document(path, seal):
    """A JSON file whose checksum is in another."""
    return json.loads(sealed(path, seal.read_text("latin-1")))


def sealed(path, seal):
    """A file's bytes; their SHA-256 is in the text."""
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() not in seal:
        raise ValueError(f"{path} does not have its checksum")
    return data


def slot(id_, table):
    """The top 12 bits of an id's hash with the table's salt."""
    fnv = reduce(lambda x, byte: (x ^ byte) * 0x100000001B3 % 2**64, table.encode(), 0xCBF29CE484222325)
    return mix(id_ % 2**64 ^ mix(fnv)) >> 52


def mix(x):
    """The first output of SplitMix64 seeded with x."""
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    for shift, factor in (30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB):
        x = (x ^ x >> shift) * factor % 2**64
    return x ^ x >> 31


if __name__ == "__main__":
    try:
        tables, dense = read(sys.argv[1])
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    print(json.dumps({"rows": {name: len(rows) for name, rows in tables.items()},
                      "dense": {name: block.shape for name, block in dense.items()}}))
