"""A trained model as a SavedModel that needs nothing of recmesh: raw ids in, predictions out.

Each table becomes two variables, its ids in ascending order and their rows; a lookup is searchsorted, gather and a
mask, so that ids never seen read as zero.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import recmesh
from recmesh.keras.embedding import looking_up
from recmesh.keras.inputs import identifier, signature
from recmesh.serving.apart import Apart, places_input, rows_input
from recmesh.trainer.card import model_card, write_card
from recmesh.trainer.session import EmbeddingTable, Job, TableRows

FOLDER = "saved_model"


def export_saved_model(
    model: keras.Model,
    directory: Path,
    *,
    job: Job,
    tables: Sequence[EmbeddingTable],
    rows: Mapping[str, TableRows],
    metrics: Mapping[str, float],
) -> None:
    """Writes `saved_model/` with the signature `serving_default`, and `model.json`."""
    served = ServedModel(model, job, tables, rows)
    specs = signature(job)
    flat = {
        identifier(name): tf.TensorSpec((None,) if name in job.dense_features else spec.shape, spec.dtype)
        for name, spec in specs.items()
    }
    directory.mkdir(parents=True, exist_ok=True)
    tf.saved_model.save(
        served,
        str(directory / FOLDER),
        signatures={"serving_default": served.serve.get_concrete_function(**flat)},
    )
    write_card(
        directory,
        model_card(
            framework="tensorflow",
            data=job.data,
            labels=job.labels,
            tables=tables,
            rows=rows,
            metrics=metrics,
            versions={"recmesh": recmesh.__version__, "tensorflow": tf.__version__, "keras": keras.__version__},
        ),
    )


def export_apart(
    model: keras.Model,
    directory: Path,
    *,
    job: Job,
    apart: Apart,
    parameters: Mapping[str, Any],
    tables: Sequence[EmbeddingTable],
    rows: Mapping[str, TableRows],
    metrics: Mapping[str, float],
) -> None:
    """As `export_saved_model`, but of a program that takes rows where the model takes ids; see recmesh.serving.apart.

    `parameters`: the model's variables by the names of their blocks. The tables themselves are not written.
    """
    card = model_card(
        framework="tensorflow", data=job.data, labels=job.labels, tables=tables, rows=rows, metrics=metrics,
        versions={"recmesh": recmesh.__version__, "tensorflow": tf.__version__, "keras": keras.__version__},
    )
    served = ApartModel(model, job, apart, parameters)
    flat = {
        identifier(item["name"]): tf.TensorSpec(
            [None if size == -1 else size for size in item["shape"]], getattr(tf, item["dtype"])
        )
        for item in apart.inputs_of(card["inputs"])
    }
    directory.mkdir(parents=True, exist_ok=True)
    tf.saved_model.save(
        served,
        str(directory / FOLDER),
        signatures={"serving_default": served.serve.get_concrete_function(**flat)},
    )
    write_card(directory, {**card, "apart": apart.document()})


class ApartModel(tf.Module):
    """The model behind its inputs' names, with the rows of a request among them."""

    def __init__(self, model: keras.Model, job: Job, apart: Apart, parameters: Mapping[str, Any]) -> None:
        super().__init__()
        self._job, self._several = job, len(job.labels) > 1
        self._number = {table.name: number for number, table in enumerate(apart.tables)}
        # A feature's places are the same in all its tables, which have the same features (`Attached`).
        self._home = {
            feature: number for number, table in reversed(list(enumerate(apart.tables))) for feature in table.features
        }
        self.serve: Any = tf.function(self._serve)
        self._call: Any = lambda fed: model(fed, training=False)
        self.parameters = [variable.value for variable in model.variables]
        self.parameters_by_name = dict(parameters)
        """Serving exchanges them: recmesh.serving.programs.tensorflow_program."""

    def _serve(self, **inputs: Any) -> dict[str, Any]:
        """Inputs by identifier; `predictions` float32 [B] or [B, labels]."""
        fed = {}
        for name in signature(self._job):
            home = self._home.get(name)
            value = inputs[identifier(name if home is None else places_input(home, name))]
            fed[name] = value[:, None] if name in self._job.dense_features else value
        rows = {name: inputs[identifier(rows_input(number))] for name, number in self._number.items()}
        with looking_up(GivenRows(rows)):
            output = self._call(fed)
        return {"predictions": output if self._several else tf.reshape(output, (-1,))}


class GivenRows:
    """A RowSource of rows at places that the caller has found."""

    def __init__(self, rows: Mapping[str, Any]) -> None:
        self._rows = rows

    def look_up(self, table: EmbeddingTable, ids: Any) -> Any:
        """See RowSource.look_up; `ids` are places."""
        return tf.gather(self._rows[table.name], ids)


class ServedModel(tf.Module):
    """The model behind its inputs' names, with its rows as variables."""

    def __init__(
        self, model: keras.Model, job: Job, tables: Sequence[EmbeddingTable], rows: Mapping[str, TableRows]
    ) -> None:
        super().__init__()
        self._job, self._several = job, len(job.labels) > 1
        self.serve: Any = tf.function(self._serve)
        # Not the model itself: saving would ask it for signatures of its own, which know no rows.
        self._call: Any = lambda fed: model(fed, training=False)
        self.parameters = [variable.value for variable in model.variables]
        self.ids: dict[str, Any] = {}
        self.rows: dict[str, Any] = {}
        for table in tables:
            held = rows[table.name]
            # One row at least, of an id that no data has: gather needs somewhere to point at.
            empty = not len(held.ids)
            ids = np.array([np.iinfo(np.int64).max]) if empty else held.ids
            values = np.zeros((1, table.dim), np.float32) if empty else held.values
            self.ids[table.name] = tf.Variable(ids, trainable=False, dtype=tf.int64)
            self.rows[table.name] = tf.Variable(values, trainable=False, dtype=tf.float32)

    def _serve(self, **inputs: Any) -> dict[str, Any]:
        """Inputs by identifier; `predictions` float32 [B] or [B, labels]."""
        fed = {}
        for name in signature(self._job):
            value = inputs[identifier(name)]
            fed[name] = value[:, None] if name in self._job.dense_features else value
        with looking_up(self):
            output = self._call(fed)
        return {"predictions": output if self._several else tf.reshape(output, (-1,))}

    def look_up(self, table: EmbeddingTable, ids: Any) -> Any:
        """Rows of ids of any shape; zero where there is none."""
        known, rows = self.ids[table.name], self.rows[table.name]
        flat = tf.reshape(ids, (-1,))
        place = tf.minimum(tf.searchsorted(known, flat), tf.shape(known)[0] - 1)
        found = tf.equal(tf.gather(known, place), flat)
        values = tf.where(found[:, None], tf.gather(rows, place), 0.0)
        return tf.reshape(values, tf.concat([tf.shape(ids), [table.dim]], axis=0))
