"""What each format does beyond the values that all give alike (test_reader.py): lists, types, damage, plug-ins."""

import struct
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recmesh.data import Batch, concat, spool, whole_dataset
from recmesh.data.crc32c import crc32c, masked_crc32c
from recmesh.data.fileformats import framed, interface
from recmesh.data.fileformats.framed import FixedFraming, Framing, TfRecordFraming, VarintFraming, frames
from recmesh.data.fileformats.jsonl import JsonLines
from recmesh.data.snappy import Chunks, Framed
from recmesh.formats import hash_strings
from recmesh.plugins import registry
from recmesh.runtime.errors import InvalidArgument
from recmesh.spec.dataset import DatasetSpec, SourceSpec
from tests.support.datasets import click_message, clicks, descriptors_of, example, snappy_framed, spec, tf_record, write


def everything(dataset: DatasetSpec) -> Batch:
    return concat(list(whole_dataset(dataset)))


def refused(dataset: DatasetSpec) -> tuple[str, str]:
    with pytest.raises(InvalidArgument) as caught:
        everything(dataset)
    [violation, *_] = caught.value.violations
    return violation.path, violation.reason


def dataset(path: Path, kind: str, features: list[dict[str, Any]], **source: Any) -> DatasetSpec:
    return DatasetSpec.parse({"source": {"format": kind, "files": [str(path)], **source}, "features": features})


# ---- checksums and packing


def test_checksums_are_those_of_the_standard() -> None:
    assert crc32c(np.frombuffer(b"123456789", np.uint8)) == 0xE3069283     # the catalogue's check value
    assert crc32c(np.zeros(32, np.uint8)) == 0x8A9136AA                    # RFC 3720, B.4
    assert crc32c(np.frombuffer(b"", np.uint8)) == 0
    crc = crc32c(np.frombuffer(b"abc", np.uint8))
    assert masked_crc32c(np.frombuffer(b"abc", np.uint8)) == ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) % 2**32


@given(data=st.binary(max_size=300_000), spans=st.lists(st.tuples(st.integers(0, 300_000), st.integers(0, 300_000))))
def test_framed_snappy_is_read_at_any_offset(data: bytes, spans: list[tuple[int, int]]) -> None:
    import io

    packed, chunks = snappy_framed(data), Chunks()
    for lo, hi in [(0, len(data)), *spans]:
        assert Framed(io.BytesIO(packed), chunks).read(lo, hi) == data[lo:hi]


@pytest.mark.parametrize("name", ["a.csv.gz", "a.csv.zst", "a.csv.sz", "a.tfrecord.gz"])
@pytest.mark.parametrize("harm", ["cut", "flip", "other"])
def test_a_damaged_packed_file_is_refused_by_name(name: str, harm: str, tmp_path: Path) -> None:
    path = write(clicks(3000), tmp_path / name)
    data = bytearray(path.read_bytes())
    match harm:
        case "cut":
            del data[-100:]
        case "flip":
            data[len(data) // 2] ^= 0x55
        case "other":
            data = bytearray(b"not packed at all, but text " * 100)
    path.write_bytes(data)
    field, reason = refused(spec(path, format=name.split(".")[1]))
    assert field == "data.source.files" and name in reason


def test_unpacked_copies_are_kept_within_their_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "BUDGET_BYTES", 150_000)
    monkeypatch.setattr(spool, "_copies", type(spool._copies)())
    sizes = []
    for number in range(4):
        path = write(clicks(3000, seed=number), tmp_path / f"{number}.csv.zst")
        assert everything(spec(path, format="csv", task_rows=700)).size == 3000
        sizes.append(sum(copy.size_bytes for copy in spool._copies.values()))
    assert max(sizes) <= 150_000 + 100_000 and len(spool._copies) < 4


def test_parquet_is_never_packed_as_a_whole(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"wrong field") as caught:
        spec("a.parquet.gz", compression="gzip")
    assert caught.value.violations[0].path == "data.source.compression" or "compression" in str(caught.value.violations)


# ---- JSON lines


def test_json_lines_have_lists_missing_fields_and_unknown_ones(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"label": 1, "tags": ["a", "b"], "n": 1, "other": {"x": 1}}, {"label": 0, "tags": [], "more": 5}, {"label": 0},
    ]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(orjson.dumps(row) for row in rows) + b"\n\n")
    features: list[dict[str, Any]] = [{"name": "tags", "kind": "bag"}, {"name": "n", "kind": "dense", "fill": -1}]
    batch = everything(dataset(path, "jsonl", features))
    assert batch.ids["tags"].values.tolist() == hash_strings(["a", "b"]).tolist()
    assert np.asarray(batch.ids["tags"].offsets).tolist() == [0, 2, 2, 2]
    assert batch.dense[:, 0].tolist() == [1, -1, -1]


def test_a_json_field_that_comes_late_is_declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from recmesh.data.fileformats import jsonl

    monkeypatch.setattr(jsonl, "_HEAD_BYTES", 64)
    path = tmp_path / "a.jsonl"
    rows: list[dict[str, Any]] = [{"label": 0}] * 20 + [{"label": 1, "user": 5}]
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    assert refused(dataset(path, "jsonl", [{"name": "user"}]))[0] == "data.features.user"
    batch = everything(dataset(path, "jsonl", [{"name": "user"}], types={"user": "int"}))
    assert batch.ids["user"].values.tolist()[-1] == 5 and batch.size == 21


@pytest.mark.parametrize("line", [b'{"label": 1, "user": ', b'{"label": 1, "user": "text"}', b"no json"])
def test_a_line_that_is_no_such_object_is_refused_by_file(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"label": 0, "user": 1}\n' * 10 + line + b"\n")
    field, reason = refused(dataset(path, "jsonl", [{"name": "user"}]))
    assert field == "data.source.files" and "a.jsonl" in reason


# ---- messages with a length


FRAMINGS: dict[str, Framing] = {
    "varint": VarintFraming(), "little": FixedFraming("fixed32-little"), "big": FixedFraming("fixed32-big"),
    "tfrecord": TfRecordFraming(),
}


def framed_as(name: str, message: bytes) -> bytes:
    match name:
        case "tfrecord":
            return tf_record(message)
        case "varint":
            size, head = len(message), b""
            while size > 0x7F:
                head, size = head + bytes([size & 0x7F | 0x80]), size >> 7
            return head + bytes([size]) + message
        case _:
            return struct.pack("<I" if name == "little" else ">I", len(message)) + message


@given(name=st.sampled_from(sorted(FRAMINGS)), messages=st.lists(st.binary(max_size=400), max_size=20),
       block=st.integers(1, 600))
def test_frames_are_found_wherever_blocks_end(name: str, messages: list[bytes], block: int) -> None:
    whole = [framed_as(name, message) for message in messages]
    data = b"".join(whole)
    saved, framed._BLOCK_BYTES = framed._BLOCK_BYTES, block
    try:
        found = list(frames(lambda lo, hi: data[lo:hi], 0, None, FRAMINGS[name]))
    finally:
        framed._BLOCK_BYTES = saved
    assert [data[lo:hi] for lo, hi in found] == whole
    assert framed._messages(data, FRAMINGS[name]) == messages


@pytest.mark.parametrize(("at", "words"), [(0, "length"), (20, "checksum"), (-1, "checksum"), (None, "ends within")])
def test_a_record_with_a_wrong_checksum_is_refused(at: int | None, words: str, tmp_path: Path) -> None:
    path = write(clicks(50), tmp_path / "a.tfrecord")
    data = bytearray(path.read_bytes())
    if at is None:
        del data[-3:]
    else:
        data[at] ^= 1
    path.write_bytes(data)
    field, reason = refused(spec(path, format="tfrecord"))
    assert field == "data.source.files" and words in reason


def test_examples_hold_lists_and_say_when_a_value_becomes_one(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"label": 1, "tags": ["a", "b"], "one": 5}, {"label": 0, "tags": ["c"], "one": 6}]
    path = tmp_path / "a.tfrecord"
    path.write_bytes(b"".join(tf_record(example(row)) for row in rows))
    batch = everything(dataset(path, "tfrecord", [{"name": "tags", "kind": "bag"}, {"name": "one"}]))
    assert batch.ids["tags"].values.tolist() == hash_strings(["a", "b", "c"]).tolist()
    assert batch.ids["one"].values.tolist() == [5, 6]
    late = b"".join(tf_record(example({"label": 0, "one": 1})) for _ in range(300))
    path.write_bytes(late + tf_record(example({"label": 0, "one": [1, 2]})))
    assert "list<int>" in refused(dataset(path, "tfrecord", [{"name": "one"}]))[1]
    batch = everything(dataset(path, "tfrecord", [{"name": "one", "kind": "bag"}], types={"one": "list<int>"}))
    assert batch.ids["one"].values.tolist() == [1] * 301 + [2]


def test_a_file_that_tensorflow_wrote_is_read(tmp_path: Path) -> None:
    import tensorflow as tf

    path = tmp_path / "a.tfrecord"
    rows = clicks(300).to_pylist()
    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in rows:
            writer.write(example(row))
    assert [int(row) for row in everything(spec(path, format="tfrecord", task_rows=70)).dense[:, 1]] == list(range(300))


def test_fields_of_messages_inside_are_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.protobuf"
    message = click_message(descriptors_of(path))
    found = [message(label=1, inner={"tags": [b"a", b"b"]}), message(label=0)]
    path.write_bytes(b"".join(framed_as("varint", each.SerializeToString()) for each in found))
    source = {"descriptors": str(descriptors_of(path)), "message": "test.Click"}
    batch = everything(dataset(path, "protobuf", [{"name": "tags", "kind": "bag", "column": "inner.tags"}], **source))
    assert batch.ids["tags"].values.tolist() == hash_strings(["a", "b"]).tolist()
    assert np.asarray(batch.ids["tags"].offsets).tolist() == [0, 2, 2]


@pytest.mark.parametrize(("change", "path", "words"), [
    ({"message": "test.Nope"}, "data.source.message", "there are test.Click, test.Inner"),
    ({"descriptors": "/nowhere"}, "data.source.descriptors", "cannot be read"),
    ({"descriptors": __file__}, "data.source.descriptors", "has no descriptors"),
])
def test_wrong_descriptors_are_named(change: dict[str, str], path: str, words: str, tmp_path: Path) -> None:
    file = write(clicks(5), tmp_path / "a.protobuf")
    field, reason = refused(spec(file, format="protobuf", **change))
    assert field == path and words in reason


# ---- formats of packages


class Upper(JsonLines):
    """A format of a package's."""

    def index(self, file: Any, spec: SourceSpec) -> interface.Indexed:
        found = super().index(file, spec)
        return interface.Indexed({name: kind for name, kind in found.kinds.items()}, found.slices)


def test_a_package_adds_a_format_by_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("upper", f"{__name__}:Upper", "recmesh.file_formats"),
              EntryPoint("broken", "no_such_module:Format", "recmesh.file_formats")]
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    monkeypatch.setattr(
        registry, "entry_points",
        lambda group, name=None: [each for each in points if each.group == group and name in (None, each.name)],
    )
    path = write(clicks(20), tmp_path / "a.jsonl")
    assert everything(spec(path, format="upper")).size == 20
    with pytest.raises(InvalidArgument, match="cannot be loaded"):
        everything(spec(path, format="broken"))
    with pytest.raises(InvalidArgument) as caught:
        spec(path, format="nope")
    assert "parquet" in caught.value.violations[0].reason and "upper" in caught.value.violations[0].reason


def test_an_arrow_stream_is_no_arrow_file(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    table = clicks(10)
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)
    assert "no Arrow IPC file" in refused(spec(path, format="arrow"))[1]
