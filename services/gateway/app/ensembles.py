"""Running an ensemble: each step as soon as its tensors are there, all within one deadline."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from recmesh.runtime.errors import FailedPrecondition, Internal
from recmesh.serving.steps import Step
from services.gateway.domain.inference import InferRequest, InferResponse, RequestedOutput
from services.gateway.domain.statistics import Times
from services.gateway.domain.tensors import Tensor

Infer = Callable[[InferRequest], Awaitable[InferResponse]]
NO_TIMES = Times(0, 0, 0, 0)
"""An ensemble computes nothing itself; its steps' statistics say where the time went."""


async def run(
    steps: Sequence[Step], request: InferRequest, outputs: Sequence[str], infer: Infer
) -> tuple[list[Tensor], Times]:
    """The ensemble's outputs. The first step that fails ends the others, and is the ensemble's error.

    Steps inherit priority and deadline; they get no `timeout` of their own, for the deadline is one.
    """
    tensors = {item.name: item for item in request.inputs}
    waiting = list(steps)
    running: dict[asyncio.Task[InferResponse], Step] = {}
    parameters = {key: value for key, value in request.parameters.items() if key == "priority"}
    try:
        while waiting or running:
            able = [step for step in waiting if all(name in tensors for name in step.inputs.values())]
            waiting = [step for step in waiting if step not in able]
            for step in able:
                inputs = tuple(
                    Tensor(name, tensors[tensor].datatype, tensors[tensor].array)
                    for name, tensor in step.inputs.items()
                )
                wanted = tuple(RequestedOutput(name) for name in step.outputs)
                asked = InferRequest(step.model, step.version, inputs, wanted, request.id, parameters)
                running[asyncio.ensure_future(infer(asked))] = step
            if not running:
                raise Internal("an ensemble's steps wait for each other", reason="BAD_ENSEMBLE")
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                step = running.pop(task)
                for item in task.result().outputs:
                    tensor = step.outputs[item.name]
                    tensors[tensor] = Tensor(tensor, item.datatype, item.array)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return [tensors[name] for name in outputs], NO_TIMES


def not_loaded(request: InferRequest) -> FailedPrecondition:
    """A step's model does not serve."""
    what = f"{request.model}/{request.version}" if request.version else request.model
    return FailedPrecondition(f"model {what}, a step of the ensemble, does not serve", reason="STEP_NOT_READY")
