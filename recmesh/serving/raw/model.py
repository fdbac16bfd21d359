"""The transform of one model: raw columns, or rows of JSON, to its inputs."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from recmesh.data import examples
from recmesh.data.schema import kind_of
from recmesh.data.transform import Transform
from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, Violation
from recmesh.serving.card import ModelCard
from recmesh.serving.raw.columns import ROWS, RawColumn
from recmesh.serving.raw.tables import inputs_of, table_of
from recmesh.serving.tensors import Tensor

WHERE = "the request"


class RawModel:
    """A model's transform, ready."""

    def __init__(self, folder: Path, *, functions: Path | None = None) -> None:
        """InvalidArgument, FailedPrecondition: the folder's `model.json` has no transform that may be run here."""
        self._card = ModelCard.parse(orjson.loads((folder / "model.json").read_bytes()))
        document = self._card.raw.document
        if document is None:
            raise FailedPrecondition(f"raw columns cannot be taken: {self._card.raw.fault}", reason="NO_RAW_INPUTS")
        self._transform = Transform.parse(document)
        for feature in self._transform.features:
            if feature.function is not None:
                check_function(feature.name, feature.function, functions)

    def run(self, form: str, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The model's inputs; InvalidArgument (INPUT_MISMATCH) names the columns that are wrong."""
        try:
            return self._inputs(form, tensors)
        except InvalidArgument as error:
            if error.reason != InvalidArgument.__name__:
                raise
            raise InvalidArgument(
                "the rows do not fit the model", reason="INPUT_MISMATCH", violations=error.violations
            ) from None

    def _inputs(self, form: str, tensors: Sequence[Tensor]) -> list[Tensor]:
        if form == ROWS:
            table = examples.table_of(self._transform, _rows(tensors), aliases=False)
            _check_types(self._card.raw.columns, table)
        else:
            table = table_of(self._card.raw.columns, tensors)
        ids, dense = self._transform.inputs(table, where=WHERE)
        return inputs_of(self._transform, ids, dense, self._card.inputs)


def _check_types(columns: Sequence[RawColumn], table: Any) -> None:
    """InvalidArgument where text stands for integers, or the other way round: they would be other ids."""
    wrong = []
    for column in columns:
        found = kind_of(table[column.name].type)
        if column.type and found != "null" and ("string" in found) != ("string" in column.type):
            wrong.append(Violation(column.name, f"is {found} here, and was {column.type} in training"))
    if wrong:
        raise InvalidArgument("the rows do not fit the model", reason="INPUT_MISMATCH", violations=wrong)


def check_function(feature: str, function: str, folder: Path | None) -> None:
    """FailedPrecondition unless the function's module lies in this folder: a `model.json` may name any code at all."""
    path = f"model.json.transform.features.{feature}.function"
    if folder is None:
        why = f"{function} is code, and RECMESH_GATEWAY_FUNCTIONS names no folder whose code may run"
        raise FailedPrecondition(f"feature {feature}: {why}", reason="NO_FUNCTIONS", violations=[Violation(path, why)])
    top = function.partition(":")[0].partition(".")[0]
    found = importlib.util.find_spec(top)        # of the top package: nothing is imported yet
    origin = Path(found.origin).resolve() if found is not None and found.origin else None
    if origin is None or not origin.is_relative_to(folder.resolve()):
        why = f"module {top} does not lie in the folder of functions"
        raise FailedPrecondition(f"feature {feature}: {why}", reason="NO_FUNCTIONS", violations=[Violation(path, why)])


def _rows(tensors: Sequence[Tensor]) -> list[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = orjson.loads(tensors[0].array.reshape(-1)[0])
    if not rows:
        raise InvalidArgument("there are no rows", reason="INPUT_MISMATCH", violations=[Violation("rows", "is empty")])
    return rows
