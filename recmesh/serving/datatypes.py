"""The datatypes of the Open Inference Protocol and their numpy kin."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np

from recmesh.runtime.errors import InvalidArgument, Violation

Kind = Literal["bool", "int", "uint", "float", "bytes"]


@dataclass(frozen=True, slots=True)
class Datatype:
    """One of the protocol's element types."""

    name: str
    kind: Kind
    numpy: np.dtype[Any]
    """Little-endian, as raw contents are; BYTES are kept as objects of class `bytes`."""

    @property
    def item_bytes(self) -> int:
        """Size of one element; 0 for BYTES, which have no fixed size."""
        return 0 if self.kind == "bytes" else self.numpy.itemsize


def _datatype(name: str, kind: Kind, code: Any) -> Datatype:
    return Datatype(name, kind, np.dtype(code))


DATATYPES: Mapping[str, Datatype] = {
    item.name: item
    for item in (
        _datatype("BOOL", "bool", "?"),
        _datatype("UINT8", "uint", "u1"),
        _datatype("UINT16", "uint", "<u2"),
        _datatype("UINT32", "uint", "<u4"),
        _datatype("UINT64", "uint", "<u8"),
        _datatype("INT8", "int", "i1"),
        _datatype("INT16", "int", "<i2"),
        _datatype("INT32", "int", "<i4"),
        _datatype("INT64", "int", "<i8"),
        _datatype("FP16", "float", "<f2"),
        _datatype("BF16", "float", ml_dtypes.bfloat16),
        _datatype("FP32", "float", "<f4"),
        _datatype("FP64", "float", "<f8"),
        _datatype("BYTES", "bytes", "O"),
    )
}

_BY_NUMPY_NAME = {item.numpy.name: item for item in DATATYPES.values() if item.kind != "bytes"}
_BY_OTHER_NAME = {"string": DATATYPES["BYTES"], "bytes": DATATYPES["BYTES"], "float": DATATYPES["FP32"]}


def datatype(name: str, *, path: str) -> Datatype:
    """The datatype of that name; InvalidArgument at `path` when the protocol has none such."""
    found = DATATYPES.get(name)
    if found is None:
        known = ", ".join(DATATYPES)
        raise InvalidArgument(
            f"{path}: there is no datatype {name!r}",
            reason="UNKNOWN_DATATYPE",
            violations=[Violation(path, f"datatype {name!r} is none of {known}")],
        )
    return found


def from_dtype(name: str) -> Datatype | None:
    """The datatype that a framework's dtype (`int64`, `float32`, `string`) or a protocol's name means."""
    return DATATYPES.get(name) or _BY_NUMPY_NAME.get(name) or _BY_OTHER_NAME.get(name)


def of_array(array: np.ndarray[Any, Any]) -> Datatype | None:
    """The datatype of an array, None when the protocol has none for it."""
    if array.dtype.kind in "OSU":
        return DATATYPES["BYTES"]
    return _BY_NUMPY_NAME.get(array.dtype.name)
