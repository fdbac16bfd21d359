"""A loaded model as a function of arrays. Frameworks are imported by their own modules, on first use."""

import importlib
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from recmesh.runtime.errors import InvalidArgument
from services.gateway.domain.card import ModelCard

Arrays = dict[str, np.ndarray[Any, Any]]


class Program(Protocol):
    """A model, ready to be called from one thread."""

    def run(self, inputs: Arrays) -> Arrays:
        """Outputs by name; the arrays may be views of framework memory."""


class Framework(Protocol):
    """What a framework's module offers."""

    def prepare(self) -> str:
        """Import and configure the framework for one thread; its version."""

    def load(self, folder: Path, card: ModelCard) -> Program:
        """The model of an exported folder; InvalidArgument when folder or program do not fit `model.json`."""


MODULES = {
    "torch": "services.gateway.runtimes.torch_program",
    "tensorflow": "services.gateway.runtimes.tensorflow_program",
}


def framework(name: str) -> Framework:
    """The framework's module; its import brings the framework in."""
    if name not in MODULES:
        raise InvalidArgument(f"there is no runtime for framework {name!r}", reason="UNKNOWN_FRAMEWORK")
    module: Any = importlib.import_module(MODULES[name])
    chosen: Framework = module.FRAMEWORK
    return chosen
