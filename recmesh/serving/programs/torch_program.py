"""Programs saved by torch.export."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.export.passes import move_to_device_pass

from recmesh.runtime.errors import InvalidArgument
from recmesh.serving.card import ModelCard
from recmesh.serving.programs import Arrays, DeviceLost, ids, torch_archive, torch_constants, torch_signature

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

    def load(self, folder: Path, card: ModelCard, *, device: str = "cpu", tunable: bool = False) -> "TorchProgram":
        """The program in `model.pt2`, its weights on the device."""
        path = folder / FILE
        if not path.is_file():
            raise InvalidArgument(f"the model folder has no {FILE}", reason="BAD_MODEL_FOLDER")
        torch_archive.check(path)
        exported = torch.export.load(str(path))
        if device != "cpu":
            exported = move_to_device_pass(exported, device)
        module = exported.module()
        if not tunable:
            torch_constants.fold(module)
        return TorchProgram(module, exported, card, device=device)


class TorchProgram:
    """An exported program and how it wants its inputs."""

    def __init__(self, module: Any, exported: Any, card: ModelCard, *, device: str) -> None:
        self._call = torch_signature.call(module, exported)
        self._device = device
        self._inputs = torch_signature.inputs(exported, [spec.name for spec in card.inputs])
        self._outputs = torch_signature.outputs(exported, [spec.name for spec in card.outputs])
        self._wanted = frozenset(spec.name for spec in card.outputs)
        self._parameters = {**dict(module.named_parameters()), **dict(module.named_buffers())}

    def placed(self, values: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
        """See Tunable."""
        wrong = [
            name for name, value in values.items()
            if name not in self._parameters or tuple(self._parameters[name].shape) != value.shape
        ]
        if wrong:
            raise InvalidArgument(
                f"the program has no such parameters, or of another shape: {', '.join(sorted(wrong))}",
                reason="BAD_MODEL_FOLDER",
            )
        return {
            name: _tensor(_writable(value)).to(device=held.device, dtype=held.dtype, copy=True)
            for name, value in values.items() for held in [self._parameters[name]]
        }

    def use(self, placed: Mapping[str, Any]) -> None:
        """See Tunable."""
        for name, value in placed.items():
            self._parameters[name].data = value      # the tensor stays, and whoever else has it sees the new values

    def run(self, inputs: Arrays) -> Arrays:
        """Outputs by name."""
        tensors = [_tensor(_writable(inputs[name])).to(self._device) for name in self._inputs]
        try:
            with torch.inference_mode():
                found = self._call(tensors)
            named = zip(self._outputs, found, strict=True)
            return {name: _array(value.detach().cpu()) for name, value in named if name in self._wanted}
        except torch.AcceleratorError as error:
            raise DeviceLost(str(error)) from error
        except (IndexError, RuntimeError) as error:
            if (refused := ids.refused(str(error), inputs)) is not None:
                raise refused from error
            raise


def _weights_only(load: Callable[..., Any]) -> Callable[..., Any]:
    """torch.export reads again with `weights_only=False` what cannot be read otherwise; here it may not."""

    def safe(*args: Any, **kwargs: Any) -> Any:
        return load(*args, **{**kwargs, "weights_only": True})

    return safe


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
