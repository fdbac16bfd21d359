"""A loaded model as a function of arrays. Frameworks are imported by their own modules, on first use."""

import importlib
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from recmesh.runtime.errors import InvalidArgument
from recmesh.serving.card import ModelCard

Arrays = dict[str, np.ndarray[Any, Any]]


class DeviceLost(Exception):
    """The accelerator is of no more use to this process, whatever model asks for it: only a new process helps."""


class Program(Protocol):
    """A model, ready to be called from one thread."""

    def run(self, inputs: Arrays) -> Arrays:
        """Outputs by name; the arrays may be views of framework memory."""


class Tunable(Program, Protocol):
    """A program whose parameters can be exchanged between two calls."""

    def placed(self, values: Mapping[str, np.ndarray[Any, Any]]) -> Any:
        """Copies where the program computes, by the parameters' names, to be used as often as wanted. From any thread.

        InvalidArgument when one is not there, or of another shape.
        """

    def use(self, placed: Any) -> None:
        """Compute with these from the next call on; by the thread that calls. Cheap."""


class Framework(Protocol):
    """What a framework's module offers."""

    def prepare(self, *, threads: int = 1) -> str:
        """Configure the framework; its version. Once in a process, before anything is loaded."""

    def device(self) -> str:
        """Where dense halves run: `cuda` where there is one, else `cpu`."""

    def load(self, folder: Path, card: ModelCard, *, device: str = "cpu", tunable: bool = False) -> Program:
        """The model of an exported folder; InvalidArgument when folder or program do not fit `model.json`.

        `tunable`: a Tunable; nothing that follows from its parameters is computed ahead.
        """


MODULES = {
    "torch": "recmesh.serving.programs.torch_program",
    "tensorflow": "recmesh.serving.programs.tensorflow_program",
}


_prepared: dict[str, tuple[Framework, str]] = {}
_preparing = threading.Lock()


def framework(name: str, *, threads: int = 1) -> tuple[Framework, str]:
    """The framework, imported and prepared at the first call, and its version.

    InvalidArgument for a name that is none; ImportError when it is not installed.
    """
    if name not in MODULES:
        raise InvalidArgument(f"there is no runtime for framework {name!r}", reason="UNKNOWN_FRAMEWORK")
    with _preparing:
        if name not in _prepared:
            module: Any = importlib.import_module(MODULES[name])
            chosen: Framework = module.FRAMEWORK
            _prepared[name] = chosen, chosen.prepare(threads=threads)
        return _prepared[name]
