"""Resource controllers of others: classes (or functions) that installed packages name in the entry-point group
`recmesh.controllers`, chosen by `RECMESH_JOBMASTER_CLUSTER=NAME`.

    [project.entry-points."recmesh.controllers"]
    slurm = "my_package.slurm:SlurmController"

It is called with a `Place` and returns a `Controller`. tests/contract/test_controllers.py is its contract.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from recmesh.plugins.registry import BrokenPlugin, UnknownPlugin, load, names
from recmesh.runtime.errors import InvalidArgument, Violation
from services.jobmaster.cluster import Controller

GROUP = "recmesh.controllers"
VARIABLE = "RECMESH_JOBMASTER_CLUSTER"
BUILT_IN = ("kubernetes", "local", "several", "yarn")
OPTIONS = "RECMESH_CONTROLLER_"
"""Variables with this prefix are the plug-in's own."""
METHODS = tuple(name for name in vars(Controller) if not name.startswith("_"))


@dataclass(frozen=True, slots=True)
class Place:
    """What a controller is given."""

    data_dir: Path
    """Of this jobmaster, for what the controller keeps."""
    storage_uri: str
    """That jobmaster and roles share."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Of the environment: `queue` for RECMESH_CONTROLLER_QUEUE."""


def options(env: Mapping[str, str]) -> dict[str, str]:
    """What the environment holds for a plug-in."""
    return {
        name.removeprefix(OPTIONS).lower(): value for name, value in env.items()
        if name.startswith(OPTIONS) and name != OPTIONS
    }


def plugged(name: str, place: Place) -> Controller:
    """The controller of that name. InvalidArgument says what there is, what it lacks, or why it cannot be made."""
    try:
        made: Controller = load(GROUP, name, {})(place)
    except UnknownPlugin:
        raise _refused(f"{name!r} is none of {', '.join(sorted((*BUILT_IN, *names(GROUP, {}))))}") from None
    except BrokenPlugin as error:
        raise _refused(str(error)) from error
    except InvalidArgument:
        raise
    except Exception as error:      # of others
        raise _refused(f"{name!r} cannot be made: {error!r}") from error
    lacking = [method for method in METHODS if not callable(getattr(made, method, None))]
    if lacking:
        raise _refused(f"{name!r} is no controller: it has no {', '.join(lacking)}")
    return made


def _refused(reason: str) -> InvalidArgument:
    return InvalidArgument("there is no such controller", reason="BAD_CONFIG", violations=[Violation(VARIABLE, reason)])
