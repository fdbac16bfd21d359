"""`apart` of a `model.json`: the model's tables lie beside its program, which takes rows instead of ids.

Where the model has an input of ids, the program has for each table that looks them up the places of those ids among
the rows that it is given (`at.<table>.<feature>`, int64 of the ids' shape), and these rows (`rows.<table>`, float32
[rows, dim], at least `LEAST_ROWS` of them). Tables are named by their numbers: any name would do as an input's then.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from recmesh.runtime.errors import InvalidArgument, Violation

FOLDER = "tables"
"""Beside `model.json`: the exported snapshot, as docs/formats/tables.md says."""
LEAST_ROWS = 2
"""torch.export takes sizes 0 and 1 for constants."""


def rows_input(table: int) -> str:
    """The program's input of a table's rows."""
    return f"rows.{table}"


def places_input(table: int, feature: str) -> str:
    """The program's input of places among a table's rows."""
    return f"at.{table}.{feature}"


class _Fields(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)


class _Table(_Fields):
    name: str
    dim: Annotated[int, Field(ge=1)]
    features: list[str]


class _Document(_Fields):
    job_id: str
    checkpoints: str | None = None
    tables: list[_Table]
    dense: dict[str, str]


def _path(loc: Sequence[int | str]) -> str:
    return "model.json.apart" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)


@dataclass(frozen=True, slots=True)
class ApartTable:
    """A table, and the features that look up in it."""

    name: str
    dim: int
    features: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Apart:
    """The checked object."""

    job_id: str
    checkpoints: str
    """URI of the folder of the job's snapshots; empty: there is nothing to follow."""
    tables: tuple[ApartTable, ...]
    dense: Mapping[str, str]
    """By dense block: the name of the program's parameter that holds it."""

    @classmethod
    def parse(cls, document: Any) -> Self:
        """InvalidArgument names every wrong field."""
        try:
            found = _Document.model_validate(document)
        except ValidationError as error:
            wrong = [Violation(_path(item["loc"]), item["msg"]) for item in error.errors()]
            raise InvalidArgument("model.json: apart is wrong", reason="BAD_MODEL_CARD", violations=wrong) from None
        tables = tuple(ApartTable(table.name, table.dim, tuple(table.features)) for table in found.tables)
        return cls(found.job_id, found.checkpoints or "", tables, found.dense)

    def document(self) -> dict[str, Any]:
        """The inverse of `parse`."""
        return {
            "job_id": self.job_id, "checkpoints": self.checkpoints, "dense": dict(self.dense),
            "tables": [
                {"name": table.name, "dim": table.dim, "features": list(table.features)} for table in self.tables
            ],
        }

    def inputs_of(self, inputs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The program's inputs, of the model's as `model.json` lists them; in their order, rows last."""
        looked_up = {feature for table in self.tables for feature in table.features}
        made: list[dict[str, Any]] = []
        for item in inputs:
            if item["name"] not in looked_up:
                made.append({"name": item["name"], "dtype": item["dtype"], "shape": list(item["shape"])})
                continue
            for number, table in enumerate(self.tables):
                if item["name"] in table.features:
                    name = places_input(number, str(item["name"]))
                    made.append({"name": name, "dtype": "int64", "shape": list(item["shape"])})
        made += [
            {"name": rows_input(number), "dtype": "float32", "shape": [-1, table.dim]}
            for number, table in enumerate(self.tables)
        ]
        return made
