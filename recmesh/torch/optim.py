"""torch's optimizers in the parameter servers' words; what these can't do is refused with the reason."""

from typing import Any

import torch

from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.spec.job import Optimizer

SUPPORTED = "SGD, Adagrad or Adam"


def translate(group: dict[str, Any], kind: type[torch.optim.Optimizer]) -> Optimizer:
    """A parameter group of `kind` as the servers apply it; InvalidArgument names what they can't."""
    refused: list[Violation] = []

    def refuse_unless(option: str, wanted: Any, reason: str) -> None:
        if group.get(option, wanted) != wanted:
            refused.append(Violation(f"optimizer.{option}", reason))

    refuse_unless("maximize", False, "the servers minimise: negate the loss instead")
    refuse_unless("differentiable", False, "updates happen on the servers, outside autograd")
    common = {"lr": float(group["lr"]), "weight_decay": float(group.get("weight_decay", 0.0))}
    if kind is torch.optim.SGD:
        refuse_unless("momentum", 0, "the servers' SGD has no momentum: use Adam, or momentum=0")
        refuse_unless("nesterov", False, "the servers' SGD has no momentum")
        optimizer: dict[str, Any] = {"kind": "sgd"}
    elif kind is torch.optim.Adagrad:
        refuse_unless("lr_decay", 0, "set training.lr_schedule in the job instead")
        start = float(group["initial_accumulator_value"])
        optimizer = {"kind": "adagrad", "eps": float(group["eps"]), "initial_accumulator": start}
    elif kind is torch.optim.Adam:
        refuse_unless("amsgrad", False, "the servers' Adam has no amsgrad")
        refuse_unless("decoupled_weight_decay", False, "the servers add weight_decay to the gradient")
        beta1, beta2 = (float(beta) for beta in group["betas"])
        optimizer = {"kind": "adam", "beta1": beta1, "beta2": beta2, "eps": float(group["eps"])}
    else:
        reason = f"torch.optim.{kind.__name__} is not applied by the servers: take {SUPPORTED}"
        raise InvalidArgument("the model's optimizer can't be used", violations=[Violation("optimizer", reason)])
    if refused:
        message = f"torch.optim.{kind.__name__} can't be applied as it is set"
        raise InvalidArgument(message, violations=refused)
    return Optimizer.parse(optimizer | common)


def by_parameter(optimizer: torch.optim.Optimizer | None) -> dict[int, Optimizer]:
    """By id(parameter): how the servers update it."""
    if optimizer is None:
        return {}
    return {
        id(parameter): translated
        for group in optimizer.param_groups
        for translated in [translate(group, type(optimizer))]
        for parameter in group["params"]
    }


def rates(optimizer: torch.optim.Optimizer | None) -> list[float]:
    """The learning rates now, to notice a scheduler that changes them where the servers can't see it."""
    return [] if optimizer is None else [float(group["lr"]) for group in optimizer.param_groups]
