"""Programs saved by torch.export."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.export.passes import move_to_device_pass

from recmesh.runtime.errors import InvalidArgument
from recmesh.serving.card import ModelCard
from recmesh.serving.programs import Arrays, DeviceLost, torch_archive, torch_constants

FILE = "model.pt2"


class TorchFramework:
    """torch, with one thread unless told otherwise: models are scaled by processes."""

    def prepare(self, *, threads: int = 1) -> str:
        """Limit torch's threads, and what it reads to tensors; its version."""
        torch.set_num_threads(threads)
        torch.set_num_interop_threads(1)
        torch.load = _weights_only(torch.load)
        return str(torch.__version__)

    def device(self) -> str:
        """CUDA where torch has it."""
        return "cuda" if torch.cuda.is_available() else "cpu"

    def load(self, folder: Path, card: ModelCard, *, device: str = "cpu") -> "TorchProgram":
        """The program in `model.pt2`, its weights on the device."""
        path = folder / FILE
        if not path.is_file():
            raise InvalidArgument(f"the model folder has no {FILE}", reason="BAD_MODEL_FOLDER")
        torch_archive.check(path)
        exported = torch.export.load(str(path))
        if device != "cpu":
            exported = move_to_device_pass(exported, device)
        module = exported.module()
        torch_constants.fold(module)
        return TorchProgram(module, _caller(exported, card), card, device=device)


class TorchProgram:
    """An exported program and how it wants its inputs."""

    def __init__(
        self, module: Any, call: Callable[[Any, dict[str, Any]], Any], card: ModelCard, *, device: str
    ) -> None:
        self._module = module
        self._call = call
        self._device = device
        self._outputs = [spec.name for spec in card.outputs]

    def run(self, inputs: Arrays) -> Arrays:
        """Outputs by name."""
        tensors = {name: _tensor(_writable(array)).to(self._device) for name, array in inputs.items()}
        try:
            with torch.inference_mode():
                result = self._call(self._module, tensors)
            named = _named(result, self._outputs)
            return {name: _array(value.detach().cpu()) for name, value in named.items()}
        except torch.AcceleratorError as error:
            raise DeviceLost(str(error)) from error


def _weights_only(load: Callable[..., Any]) -> Callable[..., Any]:
    """torch.export reads again with `weights_only=False` what cannot be read otherwise; here it may not."""

    def safe(*args: Any, **kwargs: Any) -> Any:
        return load(*args, **{**kwargs, "weights_only": True})

    return safe


def _caller(exported: Any, card: ModelCard) -> Callable[[Any, dict[str, Any]], Any]:
    """How the program takes its inputs: one dictionary, keywords, or positions in the order of model.json.

    The structure is in the program itself, so that a model exported by plain torch, unaware of us, works too.
    """
    names = [spec.name for spec in card.inputs]
    args, kwargs = exported.call_spec.in_spec.children()
    positional = args.children()
    keywords = dict(zip(kwargs.context or [], kwargs.children(), strict=True)) if kwargs.num_children else {}
    if len(positional) == 1 and positional[0].type is dict and not keywords:
        wanted = [str(key) for key in positional[0].context]
        _same(wanted, names)
        return lambda module, tensors: module({name: tensors[name] for name in wanted})
    if len(keywords) == 1 and not positional and next(iter(keywords.values())).type is dict:
        parameter, spec = next(iter(keywords.items()))
        wanted = [str(key) for key in spec.context]
        _same(wanted, names)
        return lambda module, tensors: module(**{parameter: {name: tensors[name] for name in wanted}})
    if keywords and not positional:
        _same(list(keywords), [_identifier(name) for name in names])
        return lambda module, tensors: module(**{_identifier(name): tensors[name] for name in names})
    if positional and not keywords:
        if len(positional) != len(names):
            raise InvalidArgument(
                f"the program takes {len(positional)} inputs; model.json lists {len(names)}: {names}",
                reason="BAD_MODEL_FOLDER",
            )
        return lambda module, tensors: module(*(tensors[name] for name in names))
    raise InvalidArgument(
        "the program mixes positional and keyword inputs; export it with one kind", reason="BAD_MODEL_FOLDER"
    )


def _same(wanted: list[str], listed: list[str]) -> None:
    if set(wanted) != set(listed):
        raise InvalidArgument(
            f"the program takes {', '.join(sorted(wanted))}; model.json lists {', '.join(sorted(listed))}",
            reason="BAD_MODEL_FOLDER",
        )


def _identifier(name: str) -> str:
    return "".join(char if char.isalnum() or char == "_" else "_" for char in name)


def _named(result: Any, names: list[str]) -> dict[str, Any]:
    if isinstance(result, dict):
        return {name: result[name] for name in names if name in result}
    values = result if isinstance(result, (tuple, list)) else (result,)
    if len(values) != len(names):
        raise InvalidArgument(
            f"the program gives {len(values)} outputs, but model.json lists {len(names)}",
            reason="BAD_MODEL_FOLDER",
        )
    return dict(zip(names, values, strict=True))


def _tensor(array: np.ndarray[Any, Any]) -> Any:
    """torch takes no bfloat16 from numpy; its bytes it does."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _array(tensor: Any) -> np.ndarray[Any, Any]:
    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16))
    return np.asarray(tensor.numpy())


def _writable(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """torch warns of read-only memory, which arrays over received bytes are."""
    return array if array.flags.writeable else array.copy()


FRAMEWORK = TorchFramework()
