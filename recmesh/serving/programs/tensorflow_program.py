"""TensorFlow SavedModels."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from recmesh.runtime.errors import InvalidArgument
from recmesh.serving.card import ModelCard
from recmesh.serving.programs import Arrays, ids

FOLDER = "saved_model"
SIGNATURE = "serving_default"
MODELS_AT_ONCE = 8
"""Whatever thread calls a signature, TensorFlow computes in threads that all models of the process share. With one of
them a model that is slow, or hangs, would stop all others."""
PARAMETERS = "parameters_by_name"
"""Of a model whose parameters may be exchanged: the attribute with its variables by name."""


class TensorFlowFramework:
    """TensorFlow, with one thread for an operator unless told otherwise: models are scaled by processes."""

    def prepare(self, *, threads: int = 1) -> str:
        """Limit TensorFlow's threads; its version."""
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(MODELS_AT_ONCE)
        return str(tf.__version__)

    def device(self) -> str:
        """A GPU where TensorFlow sees one."""
        return "cuda" if tf.config.list_physical_devices("GPU") else "cpu"

    def load(
        self, folder: Path, card: ModelCard, *, device: str = "cpu", tunable: bool = False
    ) -> "TensorFlowProgram":
        """The signature `serving_default` of the SavedModel in `saved_model/`; TensorFlow places it itself."""
        path = folder / FOLDER
        if not (path / "saved_model.pb").is_file():
            raise InvalidArgument(
                f"the model folder has no {FOLDER}/saved_model.pb", reason="BAD_MODEL_FOLDER"
            )
        model = tf.saved_model.load(str(path))
        if SIGNATURE not in model.signatures:
            raise InvalidArgument(f"the SavedModel has no signature {SIGNATURE!r}", reason="BAD_MODEL_FOLDER")
        return TensorFlowProgram(model, card)


class TensorFlowProgram:
    """A signature, called with keywords."""

    def __init__(self, model: Any, card: ModelCard) -> None:
        self._model = model  # its variables live as long as it does
        self._signature = model.signatures[SIGNATURE]
        specs = self._signature.structured_input_signature[1]
        self._keyword = _keywords(list(specs), [spec.name for spec in card.inputs])
        self._dtypes = {name: specs[keyword].dtype for name, keyword in self._keyword.items()}
        self._outputs = _output_keys(
            list(self._signature.structured_outputs), [spec.name for spec in card.outputs]
        )
        found = getattr(model, PARAMETERS, None)         # what recmesh exports; other models have none to exchange
        self._parameters: Mapping[str, Any] = dict(found) if found is not None else {}

    def placed(self, values: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
        """See Tunable."""
        wrong = [
            name for name, value in values.items()
            if name not in self._parameters or tuple(self._parameters[name].shape) != value.shape
        ]
        if wrong:
            raise InvalidArgument(
                f"the SavedModel has no such parameters, or of another shape: {', '.join(sorted(wrong))}",
                reason="BAD_MODEL_FOLDER",
            )
        return {name: tf.constant(value, self._parameters[name].dtype) for name, value in values.items()}

    def use(self, placed: Mapping[str, Any]) -> None:
        """See Tunable."""
        for name, value in placed.items():
            self._parameters[name].assign(value)

    def run(self, inputs: Arrays) -> Arrays:
        """Outputs by name."""
        arguments = {
            self._keyword[name]: tf.constant(array, dtype=self._dtypes[name])
            for name, array in inputs.items()
        }
        try:
            result = self._signature(**arguments)
        except tf.errors.InvalidArgumentError as error:
            if (refused := ids.refused(str(error), inputs)) is not None:
                raise refused from error
            raise
        return {name: np.asarray(result[key].numpy()) for name, key in self._outputs.items()}


def _keywords(taken: list[str], listed: list[str]) -> dict[str, str]:
    """The signature's keyword for each listed input: its name, or its name as an identifier."""
    found = {name: next((key for key in (name, _identifier(name)) if key in taken), "") for name in listed}
    if "" in found.values() or len(set(found.values())) != len(taken):
        raise InvalidArgument(
            f"the signature takes {', '.join(sorted(taken))}; model.json lists {', '.join(sorted(listed))}",
            reason="BAD_MODEL_FOLDER",
        )
    return found


def _output_keys(given: list[str], listed: list[str]) -> dict[str, str]:
    if len(given) == len(listed) == 1:
        return {listed[0]: given[0]}
    missing = sorted(set(listed) - set(given))
    if missing:
        raise InvalidArgument(
            f"the signature gives {', '.join(sorted(given))}, but model.json lists {', '.join(missing)} too",
            reason="BAD_MODEL_FOLDER",
        )
    return {name: name for name in listed}


def _identifier(name: str) -> str:
    return "".join(char if char.isalnum() or char == "_" else "_" for char in name)


FRAMEWORK = TensorFlowFramework()
