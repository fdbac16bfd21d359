"""Small files of known content, in every format that the readers know."""

import gzip
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from recmesh.data import TaskRecord
from recmesh.data.crc32c import masked_crc32c
from recmesh.data.index import index_dataset
from recmesh.spec.dataset import DatasetSpec


def clicks(rows: int, *, seed: int = 1) -> pa.Table:
    """Columns row (0, 1, ...), label, user (int, some missing), city (text, some missing), price (some missing)."""
    rng = random.Random(seed)
    return pa.table({
        "row": pa.array(range(rows), pa.int64()),
        "label": pa.array([rng.randint(0, 1) for _ in range(rows)], pa.int64()),
        "user": pa.array([None if rng.random() < 0.1 else rng.randint(0, 1000) for _ in range(rows)], pa.int64()),
        "city": pa.array(["" if rng.random() < 0.1 else f"city-{rng.randint(0, 50)}" for _ in range(rows)]),
        "price": pa.array([None if rng.random() < 0.1 else round(rng.uniform(-5, 50), 3) for _ in range(rows)]),
    })


FEATURES: list[dict[str, Any]] = [
    {"name": "user"}, {"name": "city"}, {"name": "price", "kind": "dense"}, {"name": "row", "kind": "dense"},
]


def spec(*files: Path | str, **more: Any) -> DatasetSpec:
    """A dataset of `clicks` files; keywords of the source come first, then the dataset's own."""
    known = (
        "format", "compression", "header", "columns", "delimiter", "rows", "types", "quoted", "descriptors", "message",
    )
    source = {key: more.pop(key) for key in known if key in more}
    if source.get("format") == "protobuf":
        source = {"descriptors": str(descriptors_of(Path(files[0]))), "message": "test.Click"} | source
    return DatasetSpec.parse(
        {"source": {"files": [str(file) for file in files], **source}, "features": FEATURES} | more
    )


def write(table: pa.Table, path: Path, *, row_group: int = 1000) -> Path:
    """As the name says: a.parquet, a.csv, a.tfrecord ...; those that are packed as a whole also .gz, .zst, .sz."""
    kind, *packing = path.name.split(".")[1:]
    match kind:
        case "parquet":
            pq.write_table(table, path, row_group_size=row_group)
            return path
        case "arrow":
            with pa.ipc.new_file(path, table.schema) as writer:
                writer.write_table(table, max_chunksize=row_group)
            return path
        case "jsonl":
            text = b"".join(orjson.dumps(row) + b"\n" for row in table.to_pylist())
        case "tfrecord":
            text = b"".join(tf_record(example(row)) for row in table.to_pylist())
        case "protobuf":
            message = click_message(descriptors_of(path))
            text = b"".join(_delimited(message(**_present(row))) for row in table.to_pylist())
        case _:
            text = _csv(table, "\t" if kind == "tsv" else ",")
    path.write_bytes(_PACKERS[packing[0] if packing else ""](text))
    return path


def _csv(table: pa.Table, delimiter: str) -> bytes:
    sink = pa.BufferOutputStream()
    csv.write_csv(table, sink, csv.WriteOptions(include_header=False, delimiter=delimiter, quoting_style="none"))
    body: bytes = sink.getvalue().to_pybytes()
    return (delimiter.join(table.column_names) + "\n").encode() + body


def _present(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


def example(row: dict[str, Any]) -> bytes:
    """By TensorFlow's own messages, which the reader does without."""
    from tensorflow.core.example import example_pb2, feature_pb2

    def feature(value: Any) -> Any:
        values = value if isinstance(value, list) else [value]
        match values:
            case [int(), *_]:
                return feature_pb2.Feature(int64_list=feature_pb2.Int64List(value=values))
            case [float(), *_]:
                return feature_pb2.Feature(float_list=feature_pb2.FloatList(value=values))
            case _:
                texts = [str(each).encode() for each in values]
                return feature_pb2.Feature(bytes_list=feature_pb2.BytesList(value=texts))

    found = {name: feature(value) for name, value in _present(row).items()}
    message: bytes = example_pb2.Example(features=feature_pb2.Features(feature=found)).SerializeToString()
    return message


def tf_record(data: bytes) -> bytes:
    """One record of a TFRecord file."""
    length = struct.pack("<Q", len(data))
    return b"".join((length, _masked(length), data, _masked(data)))


def _masked(data: bytes) -> bytes:
    return struct.pack("<I", masked_crc32c(np.frombuffer(data, np.uint8)))


def descriptors_of(path: Path) -> Path:
    """Where `write` puts the descriptors of a protobuf file."""
    return path.parent / "clicks.descriptors"


def click_message(descriptors: Path) -> Any:
    """The class of `test.Click`; its descriptors are written where the path says."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="click.proto", package="test", syntax="proto2")
    click = file.message_type.add(name="Click")
    for number, (name, kind) in enumerate((
        ("row", kinds.TYPE_INT64), ("label", kinds.TYPE_INT32), ("user", kinds.TYPE_INT64), ("city", kinds.TYPE_STRING),
        ("price", kinds.TYPE_DOUBLE),
    ), 1):
        click.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    inner = file.message_type.add(name="Inner")
    inner.field.add(name="tags", number=1, type=kinds.TYPE_BYTES, label=kinds.LABEL_REPEATED)
    click.field.add(
        name="inner", number=6, type=kinds.TYPE_MESSAGE, type_name=".test.Inner", label=kinds.LABEL_OPTIONAL
    )
    descriptors.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("test.Click"))


def _delimited(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    size, head = len(data), b""
    while size > 0x7F:
        head, size = head + bytes([size & 0x7F | 0x80]), size >> 7
    return head + bytes([size]) + data


def snappy_framed(data: bytes) -> bytes:
    """The framing format; every third chunk as it is."""
    codec, parts = pa.Codec("snappy"), [b"\xff\x06\x00\x00sNaPpY"]
    for number, lo in enumerate(range(0, len(data), 50_000)):
        piece = data[lo:lo + 50_000]
        packed = piece if number % 3 == 2 else codec.compress(piece, asbytes=True)
        body = _masked(piece) + packed
        parts += [bytes([number % 3 == 2]) + len(body).to_bytes(3, "little"), body]
        parts += [b"\xfe\x03\x00\x00pad"]
    return b"".join(parts)


def _zstd(data: bytes) -> bytes:
    """Two frames."""
    half = len(data) // 2
    packed = b"".join(pa.Codec("zstd").compress(part, asbytes=True) for part in (data[:half], data[half:]))
    return packed


_PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes, "gz": gzip.compress, "zst": _zstd, "sz": snappy_framed,
}


def tasks_of(dataset: DatasetSpec, *, order_seed: int = 0) -> list[TaskRecord]:
    """The dataset's slices on one line."""
    tasks, base = [], 0
    for piece in index_dataset(dataset).slices:
        tasks.append(TaskRecord(1, 0, base, piece.rows, 0, order_seed, piece))
        base += piece.rows
    return tasks
