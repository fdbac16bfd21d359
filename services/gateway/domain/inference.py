"""An inference request: what it holds, and whether it fits the model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, NotFound, Violation
from recmesh.serving.card import ModelCard, TensorSpec
from recmesh.serving.raw.columns import COLUMNS
from recmesh.serving.settings import NO_PRIORITY
from services.gateway.domain.regions import Place
from services.gateway.domain.tensors import Tensor

Parameter = bool | int | float | str
DEFAULT_PRIORITY = 0
SEQUENCE = ("sequence_id", "sequence_start", "sequence_end")
"""Parameters of the sequence extension."""


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """An output that the caller wants, and how."""

    name: str
    binary: bool | None = None
    """REST: as binary data; None: as the request says for all."""
    place: Place | None = None
    """In shared memory; the answer has no contents then."""


@dataclass(frozen=True, slots=True)
class InferRequest:
    """Inputs for one model; an empty version means the one that serves."""

    model: str
    version: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[RequestedOutput, ...] = ()
    id: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    binary_outputs: bool = False
    form: str = ""
    """Empty: `inputs` are the model's. Else they are raw columns: `columns` or `rows` (`recmesh.serving.raw`)."""


@dataclass(frozen=True, slots=True)
class InferResponse:
    """Outputs, and which version computed them."""

    model: str
    version: str
    outputs: tuple[Tensor, ...]
    id: str = ""
    fresh_version: int = 0
    """Of a model that follows a job: the version of rows and weights that answered; 0: it follows none."""


def check_inputs(card: ModelCard, inputs: Sequence[Tensor]) -> int:
    """The batch size, when the inputs are the model's; InvalidArgument names every one that is not."""
    wrong: list[Violation] = []
    given: dict[str, Tensor] = {}
    for tensor in inputs:
        if tensor.name in given:
            wrong.append(Violation(f"inputs.{tensor.name}", "is given twice"))
        given[tensor.name] = tensor
    expected = {spec.name: spec for spec in card.inputs}
    for name in given.keys() - expected.keys():
        wrong.append(
            Violation(f"inputs.{name}", f"the model has no such input; it has {', '.join(expected)}")
        )
    for name, spec in expected.items():
        if name not in given:
            wrong.append(
                Violation(f"inputs.{name}", f"is missing; {spec.datatype.name} {list(spec.shape)} expected")
            )
        else:
            reason = misfit(spec, given[name])
            if reason:
                wrong.append(Violation(f"inputs.{name}", reason))
    sizes = {name: given[name].shape[0] for name in expected if name in given and given[name].shape}
    if not wrong and len(set(sizes.values())) > 1:
        first = next(iter(sizes))
        wrong.extend(
            Violation(f"inputs.{name}", f"has a batch of {size}, but {first!r} has {sizes[first]}")
            for name, size in sizes.items()
            if size != sizes[first]
        )
    if wrong:
        raise InvalidArgument(
            "the inputs do not fit the model", reason="INPUT_MISMATCH", violations=sort(wrong)
        )
    return next(iter(sizes.values()), 1)


def misfit(spec: TensorSpec, tensor: Tensor) -> str:
    """Why the tensor is not what the model takes; empty when it is."""
    if tensor.datatype != spec.datatype:
        return f"is {tensor.datatype.name}, but the model takes {spec.datatype.name}"
    shape = tensor.shape
    fits = len(shape) == len(spec.shape) and all(
        wanted in (-1, size) for size, wanted in zip(shape, spec.shape, strict=True)
    )
    if not fits:
        return f"has shape {list(shape)}, but the model takes {list(spec.shape)} (-1: any size)"
    if shape and spec.shape[0] == -1 and shape[0] == 0:
        return "has an empty batch"
    if spec.max_length and len(shape) > 1 and shape[1] > spec.max_length:
        return f"has {shape[1]} ids per sample, but the model takes at most {spec.max_length}"
    return ""


def chosen_outputs(card: ModelCard, request: InferRequest) -> tuple[str, ...]:
    """Names of the outputs to answer with, in the order asked for; all when none are named."""
    known = [spec.name for spec in card.outputs]
    wrong = [
        Violation(f"outputs.{item.name}", f"the model has no such output; it has {', '.join(known)}")
        for item in request.outputs
        if item.name not in known
    ]
    if wrong:
        raise InvalidArgument("unknown outputs", reason="UNKNOWN_OUTPUT", violations=wrong)
    return tuple(item.name for item in request.outputs) or tuple(known)


def timeout_s(parameters: Mapping[str, Parameter], *, default_s: float, max_s: float) -> float:
    """The caller's `timeout` parameter (microseconds, as in the protocol's extension), within the limit."""
    micros = parameters.get("timeout", 0)
    if isinstance(micros, bool) or not isinstance(micros, int) or micros < 0:
        raise _bad_parameter("timeout", "is not a whole number of microseconds")
    return min(micros / 1e6 or default_s, max_s)


def priority(parameters: Mapping[str, Parameter]) -> int:
    """The caller's `priority`: 1 goes first, larger numbers later; 0, the default, is as 100."""
    value = parameters.get("priority", DEFAULT_PRIORITY)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _bad_parameter("priority", "is not a whole number from 0")
    return value or NO_PRIORITY


def refuse_sequences(parameters: Mapping[str, Parameter]) -> None:
    """InvalidArgument for a request that is to be one of a sequence: what came before it is not kept."""
    for name in SEQUENCE:
        if parameters.get(name):
            raise _bad_parameter(name, "is not taken: no model here keeps anything from one request to the next")


def raw_form(parameters: Mapping[str, Parameter]) -> str:
    """What the caller's parameter `raw` says of the inputs: see `InferRequest.form`."""
    value = parameters.get("raw", False)
    if not isinstance(value, bool):
        raise _bad_parameter("raw", "is not true or false")
    return COLUMNS if value else ""


def no_raw_inputs(model: str, why: str) -> FailedPrecondition:
    """The error of a model that takes no raw columns."""
    return FailedPrecondition(f"model {model} takes no raw columns: {why}", reason="NO_RAW_INPUTS")


def unknown_model(name: str, version: str = "") -> NotFound:
    """The error for a model that is not there."""
    what = f"model {name!r}" + (f" version {version!r}" if version else "")
    return NotFound(f"{what} is not registered", reason="UNKNOWN_VERSION" if version else "UNKNOWN_MODEL")


def sort(violations: Sequence[Violation]) -> list[Violation]:
    """In the order of their paths, so that an error reads the same every time."""
    return sorted(violations, key=lambda item: item.path)


def _bad_parameter(name: str, why: str) -> InvalidArgument:
    return InvalidArgument(
        f"parameter {name!r} {why}", reason="BAD_PARAMETER", violations=[Violation(f"parameters.{name}", why)]
    )
