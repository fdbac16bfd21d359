"""Keras' optimizers in the parameter servers' words; what these can't do is refused with the reason."""

from typing import Any

from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.spec.job import Optimizer

SUPPORTED = "SGD, Adagrad, Adam or Ftrl"
_REASONS = {
    "clipnorm": "set training.clip_norm in the job: the servers see one worker's part of a gradient only",
    "global_clipnorm": "set training.clip_norm in the job instead",
    "clipvalue": "the servers do not clip single values; set training.clip_norm in the job",
    "use_ema": "the servers keep no moving average of weights",
    "loss_scale_factor": "values are float32; there is nothing to scale",
    "gradient_accumulation_steps": "raise training.batch_size in the job instead",
}
_FTRL = {"learning_rate_power": -0.5, "l2_shrinkage_regularization_strength": 0.0, "beta": 0.0}


def translate(optimizer: Any) -> Optimizer:
    """As the servers apply it; InvalidArgument names every setting that they can't."""
    config = optimizer.get_config()
    kind = type(optimizer).__name__
    refused = [
        Violation(f"optimizer.{name}", reason) for name, reason in _REASONS.items() if config.get(name)
    ]
    rate = config["learning_rate"]
    if not isinstance(rate, (int, float)):
        refused.append(Violation("optimizer.learning_rate", "set training.lr_schedule in the job instead"))
        rate = 1.0
    common: dict[str, Any] = {"lr": float(rate), "weight_decay": 0.0}
    if config.get("weight_decay"):
        reason = "Keras decays weights apart from the gradient, the servers don't"
        refused.append(Violation("optimizer.weight_decay", reason))
    if kind == "SGD":
        if config.get("momentum"):
            refused.append(Violation("optimizer.momentum", "the servers' SGD has no momentum: use Adam"))
        chosen: dict[str, Any] = {"kind": "sgd"}
    elif kind == "Adagrad":
        start = float(config["initial_accumulator_value"])
        chosen = {"kind": "adagrad", "initial_accumulator": start, "eps": float(config["epsilon"])}
    elif kind == "Adam":
        if config.get("amsgrad"):
            refused.append(Violation("optimizer.amsgrad", "the servers' Adam has no amsgrad"))
        betas = {"beta1": float(config["beta_1"]), "beta2": float(config["beta_2"])}
        chosen = {"kind": "adam", "eps": float(config["epsilon"]), **betas}
    elif kind == "Ftrl":
        for setting, wanted in _FTRL.items():
            if config.get(setting, wanted) != wanted:
                refused.append(Violation(f"optimizer.{setting}", f"the servers' FTRL has {wanted} there"))
        chosen = {
            "kind": "ftrl",
            "initial_accumulator": float(config["initial_accumulator_value"]),
            "l1": float(config["l1_regularization_strength"]),
            "l2": float(config["l2_regularization_strength"]),
        }
    else:
        reason = f"keras.optimizers.{kind} is not applied by the servers: take {SUPPORTED}"
        raise InvalidArgument("the model's optimizer can't be used", violations=[Violation("optimizer", reason)])
    if refused:
        raise InvalidArgument(f"keras.optimizers.{kind} can't be applied as it is set", violations=refused)
    return Optimizer.parse(chosen | common)
