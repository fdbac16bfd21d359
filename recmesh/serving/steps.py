"""The steps of an ensemble: models that are run one after another, each on tensors that there are by then."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recmesh.runtime.errors import Violation

MAX_STEPS = 64


@dataclass(frozen=True, slots=True)
class Step:
    """One model, and which of the ensemble's tensors it reads and makes."""

    model: str
    version: str
    """Empty: the one that serves."""
    inputs: Mapping[str, str]
    """The model's input: the ensemble's tensor."""
    outputs: Mapping[str, str]
    """The model's output: the ensemble's tensor. Outputs that are not listed are dropped."""


def parse(entries: Any, root: str, wrong: list[Violation]) -> tuple[Step, ...]:
    """The steps of a decoded `model.json`; what is wrong is appended to `wrong`."""
    if not isinstance(entries, list) or not 0 < len(entries) <= MAX_STEPS:
        wrong.append(Violation(root, f"is not a list of 1 to {MAX_STEPS} steps"))
        return ()
    steps = [_step(entry, f"{root}[{index}]", wrong) for index, entry in enumerate(entries)]
    return tuple(step for step in steps if step is not None)


def _step(entry: Any, path: str, wrong: list[Violation]) -> Step | None:
    if not isinstance(entry, dict) or not isinstance(entry.get("model"), str) or not entry["model"]:
        wrong.append(Violation(path, "is not an object with a model"))
        return None
    found = len(wrong)
    unknown = sorted(set(entry) - {"model", "version", "inputs", "outputs"})
    wrong += [Violation(f"{path}.{name}", "is not known") for name in unknown]
    version = entry.get("version", "")
    if not isinstance(version, str):
        wrong.append(Violation(f"{path}.version", f"{version!r} is not a string"))
    maps = [_map(entry.get(name), f"{path}.{name}", wrong) for name in ("inputs", "outputs")]
    return Step(entry["model"], version, maps[0], maps[1]) if len(wrong) == found else None


def _map(value: Any, path: str, wrong: list[Violation]) -> dict[str, str]:
    fits = isinstance(value, dict) and value and all(isinstance(item, str) and item for item in value.values())
    if not fits:
        wrong.append(Violation(path, "is not an object of tensor names with at least one entry"))
        return {}
    return dict(value)


def check_flow(
    steps: Sequence[Step], given: Sequence[str], wanted: Sequence[str], root: str
) -> list[Violation]:
    """Why tensors cannot flow through the steps from `given` to `wanted`; empty when they can.

    Each tensor has one maker; each that is read is made by a step, or given; no step waits for itself.
    """
    makers: dict[str, int] = {}
    wrong: list[Violation] = []
    for index, step in enumerate(steps):
        for tensor in step.outputs.values():
            if tensor in given or tensor in makers:
                maker = "the ensemble's caller" if tensor in given else f"steps[{makers[tensor]}]"
                wrong.append(Violation(f"{root}.steps[{index}].outputs", f"{tensor!r} comes from {maker} already"))
            makers.setdefault(tensor, index)
    for index, step in enumerate(steps):
        missing = sorted({name for name in step.inputs.values() if name not in makers and name not in given})
        if missing:
            wrong.append(Violation(f"{root}.steps[{index}].inputs", f"nothing makes {', '.join(missing)}"))
    absent = sorted(name for name in wanted if name not in makers and name not in given)
    wrong += [Violation(f"{root}.outputs", f"nothing makes {name!r}") for name in absent]
    read = {name for step in steps for name in step.inputs.values()}
    wrong += [Violation(f"{root}.inputs", f"no step reads {name!r}") for name in given if name not in read]
    return wrong or _circles(steps, given, root)


def _circles(steps: Sequence[Step], given: Sequence[str], root: str) -> list[Violation]:
    there, waiting = set(given), list(enumerate(steps))
    while waiting:
        able = [(index, step) for index, step in waiting if there.issuperset(step.inputs.values())]
        if not able:
            names = ", ".join(f"steps[{index}] ({step.model})" for index, step in waiting)
            return [Violation(f"{root}.steps", f"wait for each other in a circle: {names}")]
        for _, step in able:
            there.update(step.outputs.values())
        waiting = [item for item in waiting if item not in able]
    return []
