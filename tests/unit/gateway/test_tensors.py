"""Tensor encodings: round trips, and refusals that name the tensor."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from recmesh.runtime.errors import InvalidArgument
from recmesh.serving.datatypes import DATATYPES, Datatype
from services.gateway.domain.tensors import Tensor, from_raw, from_values, to_raw, to_values

NUMERIC = [item for item in DATATYPES.values() if item.kind != "bytes"]
shapes = hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    kind = draw(st.sampled_from(NUMERIC))
    # hypothesis does not know bfloat16: the same from float32, which it rounds
    drawn = np.dtype(np.float32) if kind.name == "BF16" else kind.numpy
    with np.errstate(over="ignore"):
        array = draw(hnp.arrays(drawn, draw(shapes))).astype(kind.numpy)
    return Tensor("t", kind, array)


@st.composite
def byte_tensors(draw: st.DrawFn, element: st.SearchStrategy[bytes]) -> Tensor:
    shape = draw(shapes)
    array = np.empty(math.prod(shape), dtype=object)
    array[:] = draw(st.lists(element, min_size=array.size, max_size=array.size))
    return Tensor("t", DATATYPES["BYTES"], array.reshape(shape))


@given(tensors())
def test_raw_bytes_give_the_same_tensor_back(tensor: Tensor) -> None:
    back = from_raw("t", tensor.datatype.name, list(tensor.shape), to_raw(tensor))
    assert back.shape == tensor.shape
    assert back.array.tobytes() == tensor.array.tobytes()


@given(byte_tensors(st.binary(max_size=8)))
def test_raw_bytes_give_the_same_strings_back(tensor: Tensor) -> None:
    back = from_raw("t", "BYTES", list(tensor.shape), to_raw(tensor))
    assert back.array.tolist() == tensor.array.tolist()


@given(tensors())
def test_json_values_give_the_same_tensor_back(tensor: Tensor) -> None:
    if tensor.datatype.kind == "float" and not np.isfinite(tensor.array).all():
        return  # JSON has no infinity
    back = from_values("t", tensor.datatype.name, list(tensor.shape), to_values(tensor))
    assert back.array.tobytes() == tensor.array.tobytes()


@given(byte_tensors(st.text(max_size=5).map(str.encode)))
def test_json_strings_give_the_same_strings_back(tensor: Tensor) -> None:
    back = from_values("t", "BYTES", list(tensor.shape), to_values(tensor))
    assert back.array.tolist() == tensor.array.tolist()


@given(tensors())
def test_nested_json_means_the_same_as_flat(tensor: Tensor) -> None:
    if (tensor.datatype.kind == "float" and not np.isfinite(tensor.array).all()) or 0 in tensor.shape:
        return
    nested = from_values("t", tensor.datatype.name, list(tensor.shape), tensor.array.tolist())
    assert nested.array.tobytes() == tensor.array.tobytes()


@given(st.sampled_from(NUMERIC), st.binary(max_size=64), st.lists(st.integers(-2, 9), max_size=4))
def test_any_bytes_are_a_tensor_or_an_error_that_names_it(
    kind: Datatype, raw: bytes, shape: list[int]
) -> None:
    try:
        tensor = from_raw("user_id", kind.name, shape, raw)
    except InvalidArgument as error:
        assert "user_id" in str(error)
    else:
        assert to_raw(tensor) == raw


@given(st.binary(max_size=40), st.integers(0, 5))
def test_any_bytes_are_strings_or_an_error(raw: bytes, count: int) -> None:
    try:
        tensor = from_raw("t", "BYTES", [count], raw)
    except InvalidArgument:
        return
    assert to_raw(tensor) == raw


@pytest.mark.parametrize(
    ("datatype", "shape", "values", "why"),
    [
        ("INT64", [2], [1], "needs 2"),
        ("INT64", [1], [1.5], "holds float"),
        ("INT64", [1], [True], "holds bool"),
        ("INT64", [1], ["1"], "holds str"),
        ("INT8", [1], [128], "range"),
        ("UINT8", [1], [-1], "range"),
        ("UINT64", [1], [2**64], "range"),
        ("FP32", [1], [1e300], "range"),
        ("FP64", [1], [10**400], "range"),
        ("FP32", [1], [None], "holds NoneType"),
        ("BOOL", [1], [1], "holds int"),
        ("BYTES", [1], [3], "holds int"),
        ("INT64", [2, 2], [[1, 2], [3]], "nested"),
        ("INT64", [2, 2], [[1, 2, 3, 4]], "nested"),
        ("INT64", [2], [1, [2]], "mixes"),
        ("INT64", [2], [[1], [2]], "nested"),
        ("INT64", [2, 2, 1], [[[1], [2]], [3, 4]], "nested"),
        ("INT64", [2, 2, 1], [[1, 2], [[3], [4]]], "mixes"),
        ("FP32", [2], [1e39, 1.0], "range"),
        ("INT64", [-1], [1], "whole number"),
        ("INT64", [1.0], [1], "whole number"),
        ("INT64", [True], [1], "whole number"),
        ("INT64", [1] * 9, [1], "dimensions"),
        ("INT64", [1], 5, "not a list"),
    ],
)
def test_wrong_values_are_refused(datatype: str, shape: list[Any], values: Any, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why) as caught:
        from_values("age", datatype, shape, values)
    assert caught.value.violations[0].path == "inputs.age"


def test_an_unknown_datatype_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(InvalidArgument, match="FP32"):
        from_values("age", "FLOAT", [1], [1.0])


def test_a_bool_byte_other_than_0_and_1_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="0 or 1"):
        from_raw("flag", "BOOL", [1], b"\x02")


def test_bytes_that_are_not_text_cannot_be_sent_as_json() -> None:
    array = np.empty(1, dtype=object)
    array[0] = b"\xff"
    with pytest.raises(InvalidArgument, match="binary"):
        to_values(Tensor("t", DATATYPES["BYTES"], array))


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63)])
def test_the_ends_of_int64_survive_json(value: int) -> None:
    assert to_values(from_values("t", "INT64", [1], [value])) == [value]
