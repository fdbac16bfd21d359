"""The YARN service of a job: pure, so that the same order makes the same service in every jobmaster.

A component's size is for its life (Hadoop 3.4: an upgrade changes the command, never the resource), so that each role
has components of several sizes, all without containers until one is wanted: that costs nothing.
"""

import hashlib
import itertools
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from recmesh.runtime.errors import FailedPrecondition, Violation
from recmesh.runtime.yarn.client import Object
from recmesh.spec.job import RoleName, TrainingJob
from recmesh.spec.quantity import MIB
from services.jobmaster.cluster import Amounts, StartOrder

FACTORS = (1, 2, 4)
"""Cores and memory of a role's components, as multiples of what its processes had at first."""
ROLES = (*get_args(RoleName), "finisher")
KEEPER = "keeper"
"""Without containers; it never ends, and so neither does the service when all else has."""
NAME_LENGTH = 63
_DIGEST = 10
NEVER = "2147483647"
PROPERTIES: Mapping[str, str] = {
    # How often a role may fail, and where, is jobmaster's to decide.
    "yarn.service.container-failure-per-component.threshold": NEVER,
    "yarn.service.node-blacklist.threshold": NEVER,
}


@dataclass(frozen=True, slots=True)
class YarnSettings:
    """What all services of a jobmaster have in common."""

    prefix: str = "recmesh-"
    """Of services' names, before the job's."""
    queue: str = ""
    """Empty: YARN's default one."""
    python: str = "python3"
    """Of the nodes; it must have recmesh, and what the jobs' models need."""
    command: Sequence[str] = ()
    """Of roles; empty: the trainer, by `python`."""
    cpus: int = 1
    memory_bytes: int = 1 << 30
    """Of a role without limits of its own: YARN has no containers without."""
    gpus: Mapping[str, str] = field(default_factory=lambda: {"gpu": "yarn.io/gpu"})
    """Resource types by kind of accelerator; `gpu` is any."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Of services' configuration, such as `yarn.service.am-resource.memory`."""
    look_s: float = 1.0
    """Between two looks at what has begun and ended."""

    @property
    def role_command(self) -> Sequence[str]:
        """What a container runs."""
        return self.command or (self.python, "-m", "recmesh.trainer")


@dataclass(frozen=True, slots=True)
class Component:
    """What a container of it gets."""

    name: str
    role: str
    cpus: int
    memory_mib: int
    gpus: Mapping[str, int] = field(default_factory=dict)
    """By resource type."""


def service_name(job_id: str, settings: YarnSettings) -> str:
    """At most 63 characters, as YARN asks; a longer one is cut, and made unique by a digest."""
    name = settings.prefix + job_id
    if len(name) <= NAME_LENGTH:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST]
    return f"{name[:NAME_LENGTH - _DIGEST - 1]}-{digest}"


def refusals(spec: TrainingJob, settings: YarnSettings) -> list[Violation]:
    """What no container of YARN can have."""
    found = []
    for name in get_args(RoleName):
        role = getattr(spec.roles, name)
        if role.gpu != int(role.gpu):
            found.append(Violation(f"roles.{name}.gpu", f"{role.gpu:g} is no whole number: YARN gives whole devices"))
        if role.gpu and (role.gpu_kind or "gpu") not in settings.gpus:
            known = ", ".join(sorted(settings.gpus)) or "none"
            reason = f"this cluster has no {role.gpu_kind or 'gpu'!r}; it has: {known}"
            found.append(Violation(f"roles.{name}.gpu_kind", reason))
        if role.pod_template:
            found.append(Violation(f"roles.{name}.pod_template", "is for Kubernetes: YARN has no pods"))
    if spec.model.image and not spec.model.code:
        found.append(Violation("model.image", "images are for Kubernetes: on YARN give the code by model.code"))
    return found


def components(sizes: Mapping[str, Amounts], settings: YarnSettings) -> list[Component]:
    """Those of all roles; one that is not in `sizes` is as a worker, or as any."""
    fallback = sizes.get("worker") or next(iter(sizes.values()), Amounts())
    return [
        Component(
            _name(role, cpu, memory), role, cpus * cpu, memory_mib * memory, _gpus(amounts, settings)
        )
        for role in ROLES
        for amounts in [sizes.get(role, fallback)]
        for cpus, memory_mib in [_size(amounts, settings)]
        for cpu, memory in itertools.product(FACTORS, FACTORS)
    ]


def service_of(job_id: str, made: Iterable[Component], *, folder: str, settings: YarnSettings) -> Object:
    """The service, without any container yet."""
    name = service_name(job_id, settings)
    command = shlex.join([settings.python, "-m", "recmesh.runtime.yarn.container", folder, name])
    keeper = {
        "name": KEEPER, "number_of_containers": 0, "launch_command": "exit 0", "restart_policy": "ALWAYS",
        "resource": {"cpus": 1, "memory": "64"},
    }
    return {
        "name": name, "version": "1", "description": f"recmesh job {job_id}",
        **({"queue": settings.queue} if settings.queue else {}),
        "configuration": {"properties": {**PROPERTIES, **settings.properties}},
        "components": [
            keeper,
            *(
                {
                    "name": each.name, "number_of_containers": 0, "restart_policy": "NEVER",
                    # In place of the shell, so that a signal's end is the command's own to tell.
                    "launch_command": f"exec {command} ${{COMPONENT_INSTANCE_NAME}}",
                    "resource": _resource(each),
                } for each in made
            ),
        ],
    }


def read_components(service: Object) -> list[Component]:
    """Those of a service that is there already."""
    found = []
    for each in service.get("components") or []:
        resource = each.get("resource") or {}
        if each["name"] != KEEPER and "memory" in resource:
            gpus = {
                name: int(amount.get("value") or 0) for name, amount in (resource.get("additional") or {}).items()
                if name not in ("memory-mb", "vcores")
            }
            role = each["name"].partition("-")[0]
            found.append(Component(each["name"], role, int(resource["cpus"]), int(resource["memory"]), gpus))
    return found


def fitting(order: StartOrder, made: Iterable[Component], settings: YarnSettings) -> Component:
    """The smallest component of the role that has what the order asks for. FailedPrecondition when none has."""
    asked = Amounts(order.cpu, order.memory_bytes, order.gpu, order.gpu_kind)
    (cpus, memory_mib), gpus = _size(asked, settings), _gpus(asked, settings)
    able = [
        each for each in made
        if each.role == order.role and each.cpus >= cpus and each.memory_mib >= memory_mib and dict(each.gpus) == gpus
    ]
    if not able:
        raise FailedPrecondition(
            f"the job's YARN service has no component for a {order.role} of {cpus} vcores, {memory_mib} MiB and "
            f"{sum(gpus.values())} GPUs: it has up to {FACTORS[-1]} times what the role began with",
            reason="TOO_LARGE",
        )
    return min(able, key=lambda each: (each.memory_mib, each.cpus))


def _size(amounts: Amounts, settings: YarnSettings) -> tuple[int, int]:
    cpus = math.ceil(amounts.cpu) if amounts.cpu else settings.cpus
    return max(1, cpus), math.ceil((amounts.memory_bytes or settings.memory_bytes) / MIB)


def _gpus(amounts: Amounts, settings: YarnSettings) -> dict[str, int]:
    return {settings.gpus.get(amounts.gpu_kind or "gpu", amounts.gpu_kind): int(amounts.gpu)} if amounts.gpu else {}


def _name(role: str, cpu: int, memory: int) -> str:
    return role + (f"-c{cpu}" if cpu > 1 else "") + (f"-m{memory}" if memory > 1 else "")


def _resource(component: Component) -> dict[str, Any]:
    extra = {name: {"value": count, "unit": ""} for name, count in component.gpus.items()}
    return {
        "cpus": component.cpus, "memory": str(component.memory_mib), **({"additional": extra} if extra else {}),
    }
