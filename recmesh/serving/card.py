"""What an exported model says of itself in its folder's `model.json`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.serving import steps as ensemble_steps
from recmesh.serving.apart import Apart
from recmesh.serving.datatypes import DATATYPES, Datatype, from_dtype
from recmesh.serving.raw.columns import RawInputs, raw_inputs
from recmesh.serving.steps import Step

ENSEMBLE = "ensemble"
FRAMEWORKS = ("tensorflow", "torch", ENSEMBLE)
PLATFORMS = {"tensorflow": "tensorflow_savedmodel", "torch": "pytorch_export", ENSEMBLE: "ensemble"}
"""The protocol's names of formats: vendor_format."""

RAGGED_KINDS = ("bag", "sequence")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output; -1 in the shape is a size of the caller's choice, the first one the batch."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    kind: str = ""
    max_length: int = 0
    """Ragged features: the most ids per sample; 0 when not bounded."""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The checked content of `model.json`."""

    framework: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    """Of an ensemble."""
    raw: RawInputs = field(default_factory=RawInputs)
    """The raw columns from which its transform makes the inputs."""
    apart: Apart | None = None
    """Of a model whose tables lie beside its program."""
    program_inputs: tuple[TensorSpec, ...] = ()
    """Of such a program: it takes rows, where the model takes ids."""

    @property
    def program(self) -> "ModelCard":
        """The card of the program itself."""
        return self if self.apart is None else replace(self, inputs=self.program_inputs, apart=None, program_inputs=())

    @property
    def platform(self) -> str:
        """The format in the protocol's words."""
        return PLATFORMS[self.framework]

    @classmethod
    def parse(cls, document: Any) -> "ModelCard":
        """Check a decoded `model.json`; InvalidArgument names every wrong entry."""
        if not isinstance(document, dict):
            raise InvalidArgument("model.json holds no object", reason="BAD_MODEL_CARD")
        wrong: list[Violation] = []
        framework = document.get("framework")
        if framework not in FRAMEWORKS:
            wrong.append(
                Violation("model.json.framework", f"{framework!r} is none of {', '.join(FRAMEWORKS)}")
            )
        inputs = _specs(document.get("inputs"), "inputs", wrong)
        outputs = _specs(document.get("outputs"), "outputs", wrong)
        steps: tuple[Step, ...] = ()
        if framework == ENSEMBLE:
            steps = ensemble_steps.parse(document.get("steps"), "model.json.steps", wrong)
            if not wrong:
                given = [spec.name for spec in _with_companions(inputs)]
                wanted = [spec.name for spec in outputs]
                wrong += ensemble_steps.check_flow(steps, given, wanted, "model.json")
        if wrong:
            raise InvalidArgument("model.json is wrong", reason="BAD_MODEL_CARD", violations=wrong)
        apart = Apart.parse(document["apart"]) if document.get("apart") is not None else None
        program_inputs: tuple[TensorSpec, ...] = ()
        if apart is not None:
            ids = {spec.name for spec in inputs if spec.datatype.kind == "int"}
            wrong += [
                Violation(f"model.json.apart.tables[{number}].features", f"{name!r} is no input of whole numbers")
                for number, table in enumerate(apart.tables) for name in table.features if name not in ids
            ]
            listed = [
                {"name": spec.name, "dtype": "string" if spec.datatype.kind == "bytes" else spec.datatype.numpy.name,
                 "shape": list(spec.shape)}
                for spec in _with_companions(inputs)
            ]
            program_inputs = _specs(apart.inputs_of(listed), "inputs", wrong)
            if wrong:
                raise InvalidArgument("model.json is wrong", reason="BAD_MODEL_CARD", violations=wrong)
        return cls(
            str(framework),
            _with_companions(inputs),
            outputs,
            {
                key: float(value)
                for key, value in _mapping(document.get("metrics")).items()
                if _is_number(value)
            },
            {key: str(value) for key, value in _mapping(document.get("versions")).items()},
            steps,
            raw_inputs(document.get("transform")),
            apart,
            program_inputs,
        )


def _specs(entries: Any, root: str, wrong: list[Violation]) -> tuple[TensorSpec, ...]:
    if not isinstance(entries, list) or not entries:
        wrong.append(Violation(f"model.json.{root}", "is not a list with at least one entry"))
        return ()
    specs = [_spec(entry, f"model.json.{root}[{index}]", wrong) for index, entry in enumerate(entries)]
    found = tuple(spec for spec in specs if spec is not None)
    names = [spec.name for spec in found]
    for name in sorted({name for name in names if names.count(name) > 1}):
        wrong.append(Violation(f"model.json.{root}", f"{name!r} is there twice"))
    return found


def _spec(entry: Any, path: str, wrong: list[Violation]) -> TensorSpec | None:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or not entry["name"]:
        wrong.append(Violation(path, "is not an object with a name"))
        return None
    kind = str(entry.get("kind") or "")
    max_length = entry.get("max_length") or 0
    datatype = from_dtype(str(entry.get("dtype") or entry.get("datatype") or ""))
    if datatype is None:
        wrong.append(Violation(f"{path}.dtype", f"{entry.get('dtype')!r} is no known dtype"))
        return None
    if not isinstance(max_length, int) or max_length < 0:
        wrong.append(Violation(f"{path}.max_length", f"{max_length!r} is not a whole number"))
        return None
    shape = entry.get("shape")
    if shape is None:
        shape = [-1, -1] if kind in RAGGED_KINDS else [-1]
    if not isinstance(shape, list):
        wrong.append(Violation(f"{path}.shape", f"{shape!r} is not a list of sizes"))
        return None
    sizes = tuple(-1 if size is None else size for size in shape)
    if any(not isinstance(size, int) or isinstance(size, bool) or size < -1 for size in sizes):
        wrong.append(Violation(f"{path}.shape", f"{shape!r} is not a list of sizes"))
        return None
    return TensorSpec(entry["name"], datatype, sizes, kind, max_length)


def _with_companions(inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """A ragged feature travels padded, so its lengths are an input too, listed or not."""
    names = {spec.name for spec in inputs}
    result: list[TensorSpec] = []
    for spec in inputs:
        result.append(spec)
        lengths = f"{spec.name}.lengths"
        if spec.kind in RAGGED_KINDS and lengths not in names:
            result.append(TensorSpec(lengths, DATATYPES["INT64"], (-1,), "lengths"))
    return tuple(result)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
