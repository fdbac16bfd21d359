"""Whether an ensemble's models fit together: what one makes must be what the next one takes."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, Violation
from recmesh.serving.card import ENSEMBLE, ModelCard, TensorSpec
from recmesh.serving.steps import Step

MAX_DEPTH = 8
"""Of ensembles in ensembles."""
MAX_RUNS = 256
"""Of models for one request, those of the ensembles in it among them: a few lines of JSON must not become millions."""

Lookup = Callable[[str, str], ModelCard | None]
"""The card of a model by name and version; None when it is not registered."""


def check(name: str, card: ModelCard, lookup: Lookup) -> None:
    """InvalidArgument unless all models are there and fit; an ensemble in itself is refused as a circle."""
    wrong = _fit(card, lookup)
    if not wrong:
        wrong = _nesting(card, lookup, (name,), itertools.count(1))
    if wrong:
        raise InvalidArgument("the ensemble does not fit", reason="BAD_ENSEMBLE", violations=wrong)


def unready(steps: Sequence[Step], ready: Callable[[str, str], bool]) -> FailedPrecondition | None:
    """The error for an ensemble with a model that does not serve."""
    away = sorted({
        f"{step.model} version {step.version}" if step.version else step.model
        for step in steps if not ready(step.model, step.version)
    })  # fmt: skip
    if not away:
        return None
    return FailedPrecondition(
        f"the ensemble needs {', '.join(away)}, which {'does' if len(away) == 1 else 'do'} not serve",
        reason="STEP_NOT_READY",
    )


def _fit(card: ModelCard, lookup: Lookup) -> list[Violation]:
    known = {spec.name: spec for spec in card.inputs}
    wrong: list[Violation] = []
    reads: list[tuple[str, TensorSpec, str]] = []
    for index, step in enumerate(card.steps):
        path = f"model.json.steps[{index}]"
        found = lookup(step.model, step.version)
        if found is None:
            wanted = f"{step.model!r} version {step.version}" if step.version else repr(step.model)
            wrong.append(Violation(f"{path}.model", f"model {wanted} is not registered"))
            continue
        takes, gives = _by_name(found.inputs), _by_name(found.outputs)
        wrong += [
            Violation(f"{path}.inputs", f"{step.model} has no input {name!r}; it has {', '.join(takes)}")
            for name in step.inputs if name not in takes
        ]  # fmt: skip
        wrong += [
            Violation(f"{path}.inputs", f"{step.model}'s input {name!r} gets nothing")
            for name in takes if name not in step.inputs
        ]  # fmt: skip
        wrong += [
            Violation(f"{path}.outputs", f"{step.model} has no output {name!r}; it has {', '.join(gives)}")
            for name in step.outputs if name not in gives
        ]  # fmt: skip
        known.update({tensor: gives[name] for name, tensor in step.outputs.items() if name in gives})
        reads += [
            (f"{path}.inputs.{name}", takes[name], tensor) for name, tensor in step.inputs.items() if name in takes
        ]
    reads += [(f"model.json.outputs.{spec.name}", spec, spec.name) for spec in card.outputs]
    for path, takes_spec, tensor in reads:
        made = known.get(tensor)
        why = _misfit(made, takes_spec) if made is not None else ""
        if why:
            wrong.append(Violation(path, f"{tensor!r} {why}"))
    return wrong


def _nesting(card: ModelCard, lookup: Lookup, above: tuple[str, ...], runs: Iterator[int]) -> list[Violation]:
    for index, step in enumerate(card.steps):
        path = f"model.json.steps[{index}].model"
        if step.model in above:
            return [Violation(path, f"runs itself: {' → '.join((*above, step.model))}")]
        if len(above) >= MAX_DEPTH:
            return [Violation(path, f"is nested deeper than {MAX_DEPTH}")]
        if next(runs) > MAX_RUNS:
            return [Violation(path, f"is one of more than {MAX_RUNS} runs of models for one request")]
        inner = lookup(step.model, step.version)
        if inner is not None and inner.framework == ENSEMBLE:
            found = _nesting(inner, lookup, (*above, step.model), runs)
            if found:
                return [Violation(path, item.reason) for item in found]
    return []


def _misfit(made: TensorSpec, taken: TensorSpec) -> str:
    if made.datatype != taken.datatype:
        return f"is {made.datatype.name}, but {taken.datatype.name} is taken"
    sizes = zip(made.shape, taken.shape, strict=False)
    if len(made.shape) != len(taken.shape) or any(-1 not in (a, b) and a != b for a, b in sizes):
        return f"has shape {list(made.shape)}, but {list(taken.shape)} is taken"
    return ""


def _by_name(specs: Sequence[TensorSpec]) -> Mapping[str, TensorSpec]:
    return {spec.name: spec for spec in specs}
