"""Serialised messages as Arrow columns: tf.Example, and messages whose type a descriptor set tells."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Protocol

import fsspec
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
from google.protobuf.descriptor import FieldDescriptor

from recmesh.data.faults import wrong
from recmesh.data.files import unreadable
from recmesh.data.schema import ARROW_TYPES, Kind, kind_of

_EXAMPLE = "recmesh.tensorflow.Example"


@dataclass(frozen=True, slots=True)
class Columns:
    """What the messages of a file hold."""

    types: Mapping[str, Any]
    """Arrow types, by name."""

    @property
    def kinds(self) -> dict[str, Kind]:
        """By name."""
        return {name: kind_of(type_) for name, type_ in self.types.items()}


class Decoder(Protocol):
    """From messages to columns."""

    def columns(self, messages: Sequence[bytes], *, declared: Mapping[str, str], where: str) -> Columns:
        """What these messages, the first of a file, show, and what is declared. InvalidArgument: no such messages."""

    def table(
        self, messages: Sequence[bytes], columns: Columns, needed: Sequence[str], *, where: str, first_row: int
    ) -> Any:
        """A `pyarrow.Table` with a row per message. InvalidArgument names the row that is not as the columns say."""


Getter = Callable[[Any], Any]
"""From a parsed message to a value, a list of values, or None where it has none."""


class _Messages(ABC):
    """What both kinds share: parsing, and values by column."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    @abstractmethod
    def getter(self, name: str, type_: Any) -> Getter:
        """Of a column."""

    def parsed(self, messages: Sequence[bytes], *, where: str, first_row: int = 0) -> list[Any]:
        """InvalidArgument names the first that is no such message."""
        found = []
        for row, data in enumerate(messages, first_row):
            try:
                found.append(self._kind.FromString(data))
            except message.DecodeError as error:
                raise unreadable(where, f"row {row} is no {self._kind.DESCRIPTOR.name}: {error}") from None
        return found

    def table(
        self, messages: Sequence[bytes], columns: Columns, needed: Sequence[str], *, where: str, first_row: int
    ) -> Any:
        """See Decoder."""
        parsed, arrays, names = self.parsed(messages, where=where, first_row=first_row), [], []
        for name in needed:
            type_ = columns.types.get(name)
            if type_ is None:
                continue
            get = self.getter(name, type_)
            values: list[Any] = []
            try:
                values.extend(map(get, parsed))
                arrays.append(pa.array(values, type_))
            except (TypeError, ValueError, pa.ArrowException) as error:
                row = first_row + (len(values) if len(values) < len(parsed) else 0)
                raise unreadable(where, f"column {name!r} from row {row} on: {error}") from None
            names.append(name)
        return pa.table(arrays, names=names)


class _Examples(_Messages):
    """tf.Example: features by name, each a list of bytes, floats or integers."""

    _FIELDS: ClassVar = {"int": "int64_list", "float": "float_list", "string": "bytes_list"}

    def columns(self, messages: Sequence[bytes], *, declared: Mapping[str, str], where: str) -> Columns:
        """See Decoder. A feature with at most one value in each message is a value, any other a list."""
        kinds: dict[str, str] = {}
        many: set[str] = set()
        for each in self.parsed(messages, where=where):
            for name, feature in each.features.feature.items():
                field = feature.WhichOneof("kind")
                if field is None:
                    continue
                kind = next(kind for kind, named in self._FIELDS.items() if named == field)
                if kinds.setdefault(name, kind) != kind:
                    raise unreadable(where, f"feature {name!r} is now {kinds[name]}, now {kind}")
                if len(getattr(feature, field).value) > 1:
                    many.add(name)
        types = {name: ARROW_TYPES[f"list<{kind}>" if name in many else kind] for name, kind in sorted(kinds.items())}
        return Columns({**types, **{name: ARROW_TYPES[kind] for name, kind in declared.items()}})

    def getter(self, name: str, type_: Any) -> Getter:
        """See _Messages."""
        is_list = pa.types.is_list(type_)
        kind = next(kind for kind in self._FIELDS if ARROW_TYPES[kind] == (type_.value_type if is_list else type_))
        field = self._FIELDS[kind]

        def get(example: Any) -> Any:
            features = example.features.feature
            if name not in features:            # asking for an absent one would make it
                return None
            feature = features[name]
            held = feature.WhichOneof("kind")
            if held is None:
                return None
            if held != field:
                raise ValueError(f"a {held}, not a {field}")
            values = getattr(feature, field).value
            if kind == "string":
                values = [value.decode() for value in values]
            if is_list:
                return list(values)
            if len(values) > 1:
                raise ValueError(f"{len(values)} values; say list<{kind}> in data.source.types")
            return values[0] if len(values) else None

        return get


class _Typed(_Messages):
    """Messages of one type; fields of messages inside are named `outer.inner`."""

    def columns(self, messages: Sequence[bytes], *, declared: Mapping[str, str], where: str) -> Columns:
        """See Decoder. The type says it all; only the first message is looked at, to see that it is of the type."""
        self.parsed(messages[:1], where=where)
        return Columns(dict(_fields(self._kind.DESCRIPTOR, "", ())))

    def getter(self, name: str, type_: Any) -> Getter:
        """See _Messages."""
        *outer, last = name.split(".")
        holder = self._kind.DESCRIPTOR
        for step in outer:
            holder = holder.fields_by_name[step].message_type
        field = holder.fields_by_name[last]
        is_bytes = field.type == FieldDescriptor.TYPE_BYTES
        is_list = pa.types.is_list(type_)

        def get(found: Any) -> Any:
            for step in outer:
                if not found.HasField(step):
                    return None
                found = getattr(found, step)
            if field.has_presence and not found.HasField(last):
                return None
            value = getattr(found, last)
            if is_list:
                return [item.decode() for item in value] if is_bytes else list(value)
            return value.decode() if is_bytes else value

        return get


_NUMBERS = {
    FieldDescriptor.CPPTYPE_INT32: "int", FieldDescriptor.CPPTYPE_INT64: "int", FieldDescriptor.CPPTYPE_UINT32: "int",
    FieldDescriptor.CPPTYPE_ENUM: "int", FieldDescriptor.CPPTYPE_BOOL: "bool", FieldDescriptor.CPPTYPE_FLOAT: "float",
    FieldDescriptor.CPPTYPE_DOUBLE: "float", FieldDescriptor.CPPTYPE_STRING: "string",
}


def _fields(descriptor: Any, prefix: str, inside: tuple[str, ...]) -> "list[tuple[str, Any]]":
    """(name, Arrow type) of every field that a column can hold; lists of messages cannot be."""
    found: list[tuple[str, Any]] = []
    for field in descriptor.fields:
        name = f"{prefix}{field.name}"
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            if not field.is_repeated and field.message_type.full_name not in inside:
                found += _fields(field.message_type, f"{name}.", (*inside, descriptor.full_name))
        elif field.cpp_type == FieldDescriptor.CPPTYPE_UINT64:
            found.append((name, pa.list_(pa.uint64()) if field.is_repeated else pa.uint64()))
        else:
            type_ = pa.bool_() if (kind := _NUMBERS[field.cpp_type]) == "bool" else ARROW_TYPES[kind]
            found.append((name, pa.list_(type_) if field.is_repeated else type_))
    return found


@lru_cache(maxsize=1)
def example_decoder() -> Decoder:
    """Of tf.Example: its wire form, under a name that cannot meet TensorFlow's own in one process."""
    file = descriptor_pb2.FileDescriptorProto(name="recmesh/tensorflow.proto", package="recmesh.tensorflow",
                                              syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, type_ in (("BytesList", kinds.TYPE_BYTES), ("FloatList", kinds.TYPE_FLOAT),
                        ("Int64List", kinds.TYPE_INT64)):
        _add(file.message_type.add(name=name), "value", 1, type_, repeated=True)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, kind) in enumerate(
        (("bytes_list", "BytesList"), ("float_list", "FloatList"), ("int64_list", "Int64List")), 1
    ):
        _add(feature, name, number, kinds.TYPE_MESSAGE, of=kind, oneof=True)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    _add(entry, "key", 1, kinds.TYPE_STRING)
    _add(entry, "value", 2, kinds.TYPE_MESSAGE, of="Feature")
    _add(features, "feature", 1, kinds.TYPE_MESSAGE, of="Features.FeatureEntry", repeated=True)
    _add(file.message_type.add(name="Example"), "features", 1, kinds.TYPE_MESSAGE, of="Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return _Examples(message_factory.GetMessageClass(pool.FindMessageTypeByName(_EXAMPLE)))


def _add(
    to: Any, name: str, number: int, type_: Any, *, of: str = "", repeated: bool = False, oneof: bool = False
) -> None:
    kinds = descriptor_pb2.FieldDescriptorProto
    field = to.field.add(name=name, number=number, type=type_,
                         label=kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL)
    if of:
        field.type_name = f".recmesh.tensorflow.{of}"
    if oneof:
        field.oneof_index = 0


def message_decoder(descriptors: str, name: str) -> Decoder:
    """Of a message, by a file of `protoc --include_imports --descriptor_set_out`. InvalidArgument: it is not there."""
    try:
        with fsspec.open(descriptors, "rb") as file:
            data = file.read()
    except (OSError, ValueError, ImportError) as error:
        raise wrong("data.source.descriptors", f"{descriptors} cannot be read: {error}") from None
    return _decoder(descriptors, data, name)


@lru_cache(maxsize=64)
def _decoder(descriptors: str, data: bytes, name: str) -> Decoder:
    try:
        found = descriptor_pb2.FileDescriptorSet.FromString(data)
        pool = descriptor_pool.DescriptorPool()
        for each in found.file:
            pool.Add(each)
    except (TypeError, message.DecodeError) as error:
        reason = f"{descriptors} has no descriptors (protoc --include_imports --descriptor_set_out): {error}"
        raise wrong("data.source.descriptors", reason) from None
    try:
        return _Typed(message_factory.GetMessageClass(pool.FindMessageTypeByName(name)))
    except KeyError:
        reason = f"{descriptors} has no message {name!r}; there are {', '.join(_names(found)) or 'none'}"
        raise wrong("data.source.message", reason) from None


def _names(found: Any) -> list[str]:
    return sorted(f"{file.package}.{each.name}".strip(".") for file in found.file for each in file.message_type)[:40]
