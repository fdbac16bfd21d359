"""Options that several verbs share."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recmesh.cli import completion
from recmesh.cli.mesh.home import Home
from recmesh.cli.output import Shape
from recmesh.runtime.errors import FailedPrecondition

if TYPE_CHECKING:
    from recmesh.client.contexts import Context

HomeOption = Annotated[
    str | None,
    typer.Option(
        "--home",
        help="Data folder of the mesh (default: $RECMESH_HOME, else .recmesh here).",
        metavar="FOLDER",
    ),
]
ShapeOption = Annotated[
    Shape, typer.Option("--output", "-o", help="Text, or one document; --json is short for -o json.")
]
JobArgument = Annotated[
    str, typer.Argument(help="Id or name of the job.", metavar="JOB", autocompletion=completion.jobs)
]
RoleArgument = Annotated[
    str, typer.Argument(help="ps, worker, data or evaluator.", metavar="ROLE", autocompletion=completion.roles)
]
ContextArgument = Annotated[
    str, typer.Argument(help="A named mesh.", metavar="NAME", autocompletion=completion.contexts)
]
WaitOption = Annotated[bool, typer.Option("--wait", "-w", help="Come back when it is so, with a bar on the way.")]
TimeoutOption = Annotated[
    float, typer.Option(help="With --wait: seconds until it must be so.", min=0.1, metavar="SECONDS")
]
WAIT_S = 600.0
FileArgument = Annotated[Path, typer.Argument(help="YAML or JSON file.", metavar="FILE")]


def elsewhere(option: str | None) -> str:
    """Where the mesh of the context that was named is, if it is none of this machine's folders."""
    named = None if option else _named()
    return "" if named is None or named.home else named.where


def home_of(option: str | None) -> Home:
    """The data folder meant: --home, that of the context that was named, $RECMESH_HOME, `.recmesh` here.

    FailedPrecondition: the context names a mesh elsewhere, where nothing of this machine may be done in its stead.
    """
    if where := elsewhere(option):
        name = os.environ["RECMESH_CONTEXT"]
        at = "at" if "://" in where else "in"
        message = f"context {name} is the mesh {at} {where}: this is for a mesh of this machine; --home names one"
        raise FailedPrecondition(message, reason="NOT_OF_THIS_MACHINE")
    named = None if option else _named()
    return Home.at(named.home if named else option, os.environ)


def _named() -> "Context | None":
    name = os.environ.get("RECMESH_CONTEXT")
    if not name:
        return None
    from recmesh.client.contexts import Contexts  # with it comes what no verb of this machine needs

    return Contexts.read(os.environ).named(name)
