"""Whose rules of traffic a model has, where several ModelService objects of it set some.

The oldest object's; of one age the first by namespace and name, as the Gateway API of Kubernetes settles conflicts.
It is decided by the objects as they are, so every gateway that looks at them comes to the same, and remembers nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from recmesh.crd.kinds import REFUSED
from recmesh.runtime.errors import FailedPrecondition, InvalidArgument
from recmesh.spec.namespaces import unfit
from services.gateway.domain import traffic as traffic_rules
from services.gateway.domain.objects import model_of
from services.gateway.domain.traffic import Traffic


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """An object that sets rules; the least one of a model has its way."""

    created: str
    """As the API server writes times: by seconds, so that many objects are of one age."""
    namespace: str
    name: str
    traffic: Traffic = field(compare=False)


def claim_of(thing: Mapping[str, Any], rule: Traffic) -> Claim:
    """That of an object with these rules."""
    metadata = thing["metadata"]
    return Claim(str(metadata.get("creationTimestamp", "")), metadata["namespace"], metadata["name"], rule)


def first(things: Iterable[Mapping[str, Any]], model: str, *, own_namespace: str) -> Claim | None:
    """Of these objects, the one whose rules the model has; None: none of them sets any."""
    return min(
        (
            claim_of(thing, rule) for thing in things
            if (thing.get("spec") or {}).get("traffic") is not None
            and model_of(thing, own_namespace=own_namespace) == model
            and (rule := _rule(thing, own_namespace)) is not None
        ),
        default=None,
    )  # fmt: skip


def conflict(model: str, owner: Claim) -> FailedPrecondition:
    """What another object is told that sets rules, too."""
    return FailedPrecondition(
        f"traffic: the rules of model {model} are those of ModelService {owner.namespace}/{owner.name}, the first that "
        "sets some by age, then name; these count once it sets none, or is deleted",
        reason="TRAFFIC_CONFLICT",
    )


def _rule(thing: Mapping[str, Any], own_namespace: str) -> Traffic | None:
    """What an object would set; None: it goes, or is refused. One that was right before keeps what it had set then."""
    metadata, status = thing["metadata"], thing.get("status") or {}
    if metadata.get("deletionTimestamp") or (metadata["namespace"] != own_namespace and unfit(metadata["namespace"])):
        return None
    for text in (None if status.get("phase") == REFUSED else thing["spec"]["traffic"], status.get("traffic")):
        try:
            if text is not None:
                return traffic_rules.parse(text)
        except InvalidArgument:
            continue
    return None
