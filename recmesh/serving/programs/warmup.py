"""The first call of a program, before it is ready: it may compile or trace, and shows whether it keeps its word."""

import numpy as np

from recmesh.runtime.errors import InvalidArgument
from recmesh.serving.card import ModelCard, TensorSpec
from recmesh.serving.programs import Arrays
from recmesh.serving.tensors import Tensor


def warm_up_inputs(card: ModelCard) -> Arrays:
    """Two samples of zeros, two ids in each: the first call of a program may compile or trace."""
    return {spec.name: _zeros(spec) for spec in card.inputs}


def _zeros(spec: TensorSpec) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    shape = tuple(2 if size == -1 else size for size in spec.shape)
    if spec.datatype.kind == "bytes":
        return np.full(shape, b"", dtype=object)
    return np.zeros(shape, dtype=spec.datatype.numpy)


def check_outputs(card: ModelCard, outputs: Arrays) -> None:
    """InvalidArgument when the program's answer is not what model.json promises."""
    for spec in card.outputs:
        if spec.name not in outputs:
            raise InvalidArgument(f"the program has no output {spec.name!r}", reason="BAD_MODEL_FOLDER")
        found = Tensor.of(spec.name, outputs[spec.name]).datatype
        if found != spec.datatype:
            raise InvalidArgument(
                f"output {spec.name!r} is {found.name}, but model.json says {spec.datatype.name}",
                reason="BAD_MODEL_FOLDER",
            )
