"""Saved snapshots stay readable: by the reader, by docs/formats/snapshot.md's example, by its libraries alone."""

import hashlib
import json
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from safetensors.numpy import load_file

from recmesh.formats import Ledger, slots_of
from recmesh.formats.snapshot import (
    PartDocument,
    SnapshotError,
    dense_chunks,
    open_folder,
    open_part,
    read_dense,
    read_dense_chunks,
    read_rows,
    read_table,
)
from recmesh.formats.snapshot.rows import DenseChunk, dense_bytes
from recmesh.formats.snapshot.writing import Container

GOLDEN = Path(__file__).parent / "golden"
SCRIPT = Path(__file__).parents[3] / "docs/formats/read_snapshot.py"
PARTS = [str(GOLDEN / name) for name in ("ps-000", "ps-001")]
ITEMS = {   # id: bits of its two values, after two Adagrad steps of 0.5 from the initial value
    -(2**63): [3206802996, 3206165728], -1: [3206062303, 3207447676], 0: [3206656386, 3207355808],
    1: [3206792104, 3207476044], 42: [3207182601, 3207480550], 2**62: [3207492386, 3206162573],
}
TAGS = {7: 14.0, 8: 16.0, 9: 18.0}
WEIGHT = [[-1.0, 0.0, 1.0], [2.0, 3.0, 4.0]]


def test_the_golden_snapshot_reads_as_it_was_written() -> None:
    parts = [open_part(uri) for uri in PARTS]
    items, tags = read_table(parts, "item"), read_table(parts, "tag/é")
    assert dict(zip(items.ids.tolist(), items.values.view(np.uint32).tolist(), strict=True)) == ITEMS
    assert items.state.tolist() == [[0.75, 0.75]] * 6
    assert (items.updates.tolist(), items.frequency.tolist(), items.last_step.tolist()) == (
        [2] * 6, [3] * 6, [2] * 6)
    assert dict(zip(tags.ids.tolist(), tags.values[:, 0].tolist(), strict=True)) == TAGS
    assert tags.state.shape == (3, 0)
    assert {name: block.tolist() for name, block in read_dense(parts).items()} == {"layer/weight": WEIGHT}
    (chunk,) = dense_chunks(parts)
    assert (chunk.block, chunk.chunk, chunk.updates, chunk.state.shape) == ("layer/weight", 0, 2, (12,))


def test_part_json_says_what_the_part_is() -> None:
    first, second = (open_part(uri).document for uri in PARTS)
    assert (first.job_id, first.gen, first.snapshot, first.ps, first.map_version) == ("golden", 3, 7, 0, 5)
    assert (first.slots ^ second.slots).all()
    (group,) = first.groups
    assert (group.ledger, group.step, group.chunks) == (Ledger([(0, 0, 128)]), 2, 0)
    assert first.rows + second.rows == 9


def test_part_json_survives_reading_and_writing() -> None:
    for uri in PARTS:
        text = (Path(uri) / "part.json").read_text()
        assert PartDocument.from_json(text).to_json() == text


def test_the_documents_example_reads_it_without_recmesh() -> None:
    text = (Path(__file__).parents[3] / "docs/formats/snapshot.md").read_text()
    example = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert example is not None and "recmesh" not in example[1]
    scope: dict[str, Any] = {}
    exec(example[1], scope)
    tables, dense = scope["read"](GOLDEN)
    assert {id_: row.view(np.uint32).tolist() for id_, row in tables["item"].items()} == ITEMS
    assert {id_: row.tolist() for id_, row in tables["tag/é"].items()} == {i: [v] for i, v in TAGS.items()}
    assert {name: block.tolist() for name, block in dense.items()} == {"layer/weight": WEIGHT}


def test_the_script_knows_the_slots_of_ids() -> None:
    script = runpy.run_path(str(SCRIPT))
    ids = np.array([-(2**63), -1, 0, 1, 42, 2**62])
    for name in ("item", "tag/é"):
        assert [script["slot"](int(id_), name) for id_ in ids] == slots_of(ids, name).tolist()


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def one_more_row(path: Path, slots: list[list[int]]) -> str:
    """Adds a row with an id of these slots; the file's new checksum."""
    rows = pa.ipc.open_file(path.read_bytes()).read_all()
    ids = np.arange(100, 200)
    fits = [any(lo <= slot < hi for lo, hi in slots) for slot in slots_of(ids, "item").tolist()]
    row = rows.slice(0, 1).set_column(0, rows.schema.field("id"), pa.array(ids[fits][:1]))
    with pa.ipc.new_file(str(path), rows.schema) as writer:
        writer.write_table(pa.concat_tables([rows, row]))
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def chained(tmp_path: Path) -> Path:
    """The golden parts as snapshot 5, as deltas 6 with one more row, and as 7, whose whole first part lacks it."""
    links: list[dict[str, Any]] = []
    for number in (5, 6, 7):
        folder = tmp_path / f"{number:08d}"
        for ps, uri in enumerate(PARTS):
            part = folder / f"ps-{ps:03d}"
            shutil.copytree(uri, part)
            value = json.loads((part / "part.json").read_text()) | {"snapshot": number}
            if (number, ps) == (6, 0):
                file = next(file for file in value["files"] if file["name"] == "group-0.table-0.arrow")
                file["sha256"] = one_more_row(part / file["name"], value["groups"][0]["slots"])
            if number > 5 and (number, ps) != (7, 0):
                value |= {"version": 2, "base": number - 1}
            text = json.dumps(value)
            (part / "part.json").write_text(text)
            (part / "receipt.json").write_text(json.dumps({"ps": ps, "part_json_sha256": sha256(text)}))
        text = json.dumps({"snapshot": number, "chain": links, "parts": [{"ps": 0}, {"ps": 1}]})
        (folder / "manifest.json").write_text(text)
        (folder / "COMMITTED").write_text(json.dumps({"manifest_sha256": sha256(text)}))
        links = [{"snapshot": number, "ps": [0, 1]}, *links]
    return tmp_path


def read_by_script(folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, str(SCRIPT), str(folder)],
                          capture_output=True, text=True, timeout=60, check=False)


def test_the_script_reads_a_chain(chained: Path) -> None:
    delta = read_by_script(chained / "00000006")
    assert (delta.returncode, json.loads(delta.stdout)["rows"]) == (0, {"item": 7, "tag/é": 3})
    done = read_by_script(chained / "00000007")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"rows": {"item": 6, "tag/é": 3}, "dense": {"layer/weight": [2, 3]}}
    tables, dense = runpy.run_path(str(SCRIPT))["read"](chained / "00000007")
    assert {id_: np.array(row, np.float32).view(np.uint32).tolist() for id_, row in tables["item"].items()} == ITEMS
    assert {name: block.tolist() for name, block in dense.items()} == {"layer/weight": WEIGHT}


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("number", [5, 6, 7])
@pytest.mark.parametrize(("name", "how"), [
    ("COMMITTED", Path.unlink), ("COMMITTED", flip), ("manifest.json", Path.unlink), ("manifest.json", flip),
    ("ps-001", shutil.rmtree), ("ps-001/part.json", Path.unlink), ("ps-000/part.json", flip),
    ("ps-001/receipt.json", Path.unlink), ("ps-001/receipt.json", lambda path: path.write_bytes(b"\xff")),
    ("ps-000/group-0.table-0.arrow", flip), ("ps-001/group-0.dense.safetensors", Path.unlink),
    ("ps-002", Path.mkdir), ("", shutil.rmtree),
])
def test_the_script_refuses_a_torn_chain_in_one_line_that_names_the_file(
    chained: Path, number: int, name: str, how: Callable[[Path], object]
) -> None:
    victim = chained / f"{number:08d}" / name
    how(victim)
    with pytest.raises((OSError, ValueError)) as refusal:
        runpy.run_path(str(SCRIPT))["read"](chained / "00000007")
    named = {"COMMITTED": "manifest.json", "ps-001/receipt.json": "part.json"}    # or what it vouches for
    assert str(victim) in str(refusal.value) or str(victim.parent / named.get(name, "?")) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_the_script_ends_with_an_error_and_no_traceback(chained: Path) -> None:
    shutil.rmtree(chained / "00000005/ps-001")
    done = read_by_script(chained / "00000007")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: {chained / '00000005/ps-001'} is missing\n"


def test_columns_have_the_documented_types() -> None:
    schema = pa.ipc.open_file(str(GOLDEN / "ps-000" / "group-0.table-0.arrow")).schema
    assert {field.name: str(field.type) for field in schema} == {
        "id": "int64", "values": "fixed_size_list<item: float>[2]", "state": "fixed_size_list<item: float>[2]",
        "updates": "uint32", "frequency": "uint32", "last_step": "uint64"}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(PARTS[1], tmp_path / "ps-001")
    return tmp_path / "ps-001"


@pytest.mark.parametrize("name", ["group-0.table-0.arrow", "group-0.dense.safetensors"])
def test_a_changed_byte_is_found_before_anything_is_read(copy: Path, name: str) -> None:
    data = bytearray((copy / name).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / name).write_bytes(data)
    with pytest.raises(SnapshotError, match=f"{name} does not have the checksum"):
        open_part(str(copy)).open(name)


def test_a_missing_or_short_file_is_named(copy: Path) -> None:
    name = "group-0.table-0.arrow"
    (copy / name).write_bytes(b"")
    with pytest.raises(SnapshotError, match="has 0 bytes, not 1722"):
        open_part(str(copy)).open(name)
    (copy / name).unlink()
    with pytest.raises(SnapshotError, match="is missing"):
        open_part(str(copy)).open(name)
    (copy / "part.json").unlink()
    with pytest.raises(SnapshotError, match=r"part\.json is missing"):
        open_part(str(copy))


@pytest.mark.parametrize(("field", "value", "message"), [
    ("version", 3, "version 3; this reads"), ("format", "other", "'other'"), ("slots", None, ""),
    ("groups", [{"group": 0}], "cannot be read"), ("gen", "x", "cannot be read"),
])
def test_another_format_or_version_is_refused(copy: Path, field: str, value: object, message: str) -> None:
    document = json.loads((copy / "part.json").read_text())
    document[field] = value
    (copy / "part.json").write_text(json.dumps(document))
    if not message:                                       # derived from the groups, so not trusted
        assert open_part(str(copy)).document.slots.sum() == 2048
        return
    with pytest.raises(SnapshotError, match=message):
        open_part(str(copy))


def test_a_snapshot_without_all_parts_lacks_chunks() -> None:
    with pytest.raises(SnapshotError, match=r"'layer/weight' lacks the chunks \[0\]"):
        read_dense([open_part(PARTS[0])])


@pytest.mark.parametrize(("field", "value"), [("gen", 4), ("job_id", "other")])
def test_parts_of_two_lives_are_no_snapshot(copy: Path, field: str, value: object) -> None:
    document = copy / "part.json"
    document.write_text(json.dumps({**json.loads(document.read_text()), field: value}))
    with pytest.raises(SnapshotError, match=r"of generation \d of job \w+, generation"):
        read_table([open_part(PARTS[0]), open_part(str(copy))], "item")


def test_a_folder_that_holds_another_snapshot_than_its_number_says_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "00000005"
    shutil.copytree(PARTS[0], folder / "ps-000")
    document = folder / "ps-000" / "part.json"
    value = json.loads(document.read_text())
    document.write_text(json.dumps(value | {"version": 2, "snapshot": 7, "base": 5}))
    with pytest.raises(SnapshotError, match="has a part of snapshot 7, not of 5"):
        open_folder(folder)


def test_an_id_in_two_parts_is_refused() -> None:
    with pytest.raises(SnapshotError, match="twice"):
        read_table([open_part(PARTS[0])] * 2, "item")


def test_other_bytes_are_no_files_of_a_part() -> None:
    with pytest.raises(SnapshotError):
        list(read_rows(pa.py_buffer(b"not arrow at all")))
    for data in (b"", b"\xff" * 64, (99).to_bytes(8, "little") + b"{}"):
        with pytest.raises(SnapshotError):
            list(read_dense_chunks(memoryview(data)))


def test_dense_files_are_safetensors_in_any_order_of_blocks(tmp_path: Path) -> None:
    chunks = [DenseChunk("b/a", 10, np.ones(3, np.float32), np.empty(0, np.float32), 5),
              DenseChunk("b/a", 9, np.zeros(2, np.float32), np.ones(2, np.float32), 6)]
    path = tmp_path / "file"
    path.write_bytes(b"".join(dense_bytes(chunks)))
    assert {key: value.tolist() for key, value in load_file(path).items()} == {
        "b/a/10": [1, 1, 1], "b/a/10.state": [], "b/a/10.updates": [5],
        "b/a/9": [0, 0], "b/a/9.state": [1, 1], "b/a/9.updates": [6]}
    assert [(c.chunk, c.updates) for c in read_dense_chunks(memoryview(path.read_bytes()))] == [(9, 6), (10, 5)]


def test_a_container_is_removed_unless_it_was_kept(tmp_path: Path) -> None:
    for keep in (False, True):
        with Container(tmp_path / "part") as container:
            with container.section("a") as section:
                section.write(b"x" * 70)
            with container.section("b") as section:
                section.write(b"y")
            assert [(f.name, f.offset, f.size_bytes) for f in container.files] == [("a", 0, 70), ("b", 128, 1)]
            if keep:
                container.keep()
        assert (tmp_path / "part").exists() == keep
    with pytest.raises(FileExistsError):
        Container(tmp_path / "part")
