"""Arrow columns to the arrays that a model takes. Vectorised: no loop over rows."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recmesh.data.faults import wrong
from recmesh.data.records import Float32, IdColumn, Int64
from recmesh.data.schema import NUMBERS, kind_of
from recmesh.data.steps import bucketised, called, crossed, placed
from recmesh.formats import MISSING_ID, hash_strings
from recmesh.spec.dataset import DatasetSpec, Feature


def labels_of(table: Any, spec: DatasetSpec, *, where: str) -> Float32:
    """float32 [B, labels]; InvalidArgument where a row has none."""
    labels = np.empty((table.num_rows, len(spec.label_columns)), np.float32)
    for index, name in enumerate(spec.label_columns):
        path = f"data.labels.{index}" if spec.labels else "data.label"
        labels[:, index] = _label(_flat(table[name]), spec.label_above, name=name, path=path, where=where)
    return labels


def weights_of(table: Any, spec: DatasetSpec) -> Float32 | None:
    """float32 [B]: sample weights, 1 where one is missing; None when the dataset has none."""
    if not spec.weight:
        return None
    weights: Float32 = _floats(_flat(table[spec.weight]), missing=1.0).astype(np.float32)
    return weights


def _flat(column: Any) -> Any:
    """One array without dictionary encoding."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _argument(table: Any, feature: Feature, *, where: str) -> Any:
    """The feature's column, or what its function makes of its columns."""
    columns = [_flat(table[name]) for name in feature.source_columns]
    return _flat(called(feature, columns, where=where)) if feature.function else columns[0]


def _floats(array: Any, *, missing: float) -> Any:
    """float64 [B]; nulls and NaN become `missing`."""
    values = pc.fill_null(array.cast(pa.float64()), float("nan")).to_numpy(zero_copy_only=False)
    absent = np.isnan(values)
    return np.where(absent, missing, values) if absent.any() else values


def dense_of(table: Any, feature: Feature, *, where: str) -> Any:
    """float [B]: a dense feature."""
    array = _argument(table, feature, where=where)
    if kind_of(array.type) not in NUMBERS:  # of a function: columns were checked before
        raise wrong(f"data.features.{feature.name}.function", f"it gave {array.type} for {where}; numbers are needed")
    is_plain = feature.transform == "none" and feature.clip is None
    if is_plain and pa.types.is_float32(array.type) and array.null_count == 0:
        values = array.to_numpy()
        if not np.isnan(values).any():
            return values
    x = _floats(array, missing=feature.fill)
    if feature.clip is not None:
        x = np.clip(x, *feature.clip)
    if feature.transform == "log1p":
        return np.sign(x) * np.log1p(np.abs(x))
    if feature.transform == "criteo_log":
        return np.where(x > 2, np.floor(np.log(np.maximum(x, 2.0)) ** 2), x)
    return x


def _label(array: Any, above: float | None, *, name: str, path: str, where: str) -> Any:
    values = _floats(array, missing=float("nan"))
    absent = np.flatnonzero(np.isnan(values))
    if len(absent):
        reason = f"column {name!r} has no value in {len(absent)} of {len(values)} rows of {where}"
        raise wrong(path, reason, message="a row without a label cannot be learned from")
    return values > above if above is not None else values


def ids_of_feature(table: Any, feature: Feature, *, are_int: bool, where: str) -> IdColumn:
    """A single, bag or sequence. `are_int`: parts of split text are integers."""
    if feature.columns and feature.function is None:
        return IdColumn(_within(crossed([ids_of(_flat(table[name])) for name in feature.columns]), feature))
    array = _argument(table, feature, where=where)
    if feature.kind == "single":
        return IdColumn(_made(array, feature, where=where))
    values, offsets = _ragged(array, feature)
    if are_int:                   # text with a separator: its parts, not the text, are integers
        values = _integers(values, feature, where=where)
    weights = None
    if feature.weights:
        weights = _weights(_flat(table[feature.weights]), feature, offsets, where=where)
    column = IdColumn(_made(values, feature, where=where), offsets, weights)
    return _newest(column, feature.max_length) if feature.kind == "sequence" else column


def _made(array: Any, feature: Feature, *, where: str) -> Int64:
    """Ids of values, as the feature says."""
    try:
        if feature.boundaries:
            return _within(bucketised(_floats(array, missing=float("nan")), feature.boundaries), feature)
        if feature.vocabulary:
            return _within(placed(array, feature.vocabulary), feature)
        return _within(ids_of(array), feature)
    except (pa.ArrowException, TypeError) as error:
        raise wrong(f"data.features.{feature.name}", f"{array.type} of {where} cannot be ids: {error}") from None


def _within(ids: Int64, feature: Feature) -> Int64:
    return ids if feature.buckets is None else np.mod(ids, np.int64(feature.buckets))


def _integers(values: Any, feature: Feature, *, where: str) -> Any:
    try:
        return values.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise wrong(f"data.features.{feature.name}", f"ids of {where} are not integers: {error}") from None


def ids_of(array: Any) -> Int64:
    """int64 [N]: integers as they are, strings hashed (each distinct one once), missing as ""."""
    if kind_of(array.type) == "string":
        encoded = pc.fill_null(array, "").dictionary_encode()
        hashes = np.asarray(hash_strings(encoded.dictionary), np.int64)
        result: Int64 = hashes[encoded.indices.to_numpy(zero_copy_only=False)]
        return result
    missing = MISSING_ID
    if pa.types.is_null(array.type):
        return np.full(len(array), missing, np.int64)
    if pa.types.is_uint64(array.type):      # the upper half wraps: an id is 64 bits, not a number
        bits = pc.fill_null(array, 0).to_numpy(zero_copy_only=False).view(np.int64)
        return np.where(array.is_valid().to_numpy(zero_copy_only=False), bits, missing)
    if array.null_count:
        array = pc.fill_null(array.cast(pa.int64()), missing)
    return np.ascontiguousarray(array.to_numpy(zero_copy_only=False), np.int64)


def _ragged(array: Any, feature: Feature) -> tuple[Any, Int64]:
    """Values and offsets. A missing or empty list, or text, holds nothing; a scalar is a list of one."""
    if feature.separator and kind_of(array.type) in ("string", "null"):
        text = pc.fill_null(array.cast(pa.string()), "")
        lists = pc.split_pattern(text, feature.separator)
        empty = pc.equal(text, "")
        if pc.any(empty).as_py():
            lists = pc.if_else(empty, pa.scalar([], lists.type), lists)
        return _unpack(lists)
    if pa.types.is_nested(array.type):
        return _unpack(array)
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(array) + 1, np.int64)
    np.cumsum(valid, out=offsets[1:])
    return array.drop_null(), offsets


def _unpack(lists: Any) -> tuple[Any, Int64]:
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(lists) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    values = lists.flatten()                # leaves out what null lists may hide
    return (values.dictionary_decode() if pa.types.is_dictionary(values.type) else values), offsets


def _weights(array: Any, feature: Feature, offsets: Int64, *, where: str) -> Float32:
    values, lengths = _ragged(array, feature)
    if not np.array_equal(lengths, offsets):
        row = int(np.flatnonzero(lengths != offsets)[0]) - 1
        reason = f"row {row} of {where} has another number of weights than of ids"
        raise wrong(f"data.features.{feature.name}.weights", reason)
    try:
        result: Float32 = _floats(values, missing=1.0).astype(np.float32)
    except pa.ArrowInvalid as error:
        reason = f"weights of {where} are not numbers: {error}"
        raise wrong(f"data.features.{feature.name}.weights", reason) from None
    return result


def _newest(column: IdColumn, max_length: int) -> IdColumn:
    """The last `max_length` ids of each row."""
    assert column.offsets is not None
    lengths = np.diff(column.offsets)
    if not len(lengths) or int(lengths.max()) <= max_length:
        return column
    kept = np.minimum(lengths, max_length)
    offsets = np.zeros(len(kept) + 1, np.int64)
    np.cumsum(kept, out=offsets[1:])
    starts = column.offsets[1:] - kept
    source = np.arange(offsets[-1], dtype=np.int64) + np.repeat(starts - offsets[:-1], kept)
    return IdColumn(column.values[source], offsets)
