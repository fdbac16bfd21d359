"""model register, load, unload."""

import json
import os
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recmesh.cli import completion, output
from recmesh.cli.connect import connect
from recmesh.cli.options import HomeOption, ShapeOption
from recmesh.cli.output import Shape
from recmesh.cli.verbs import group as group_of
from recmesh.runtime.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument, Violation

if TYPE_CHECKING:
    from recmesh.client import Client, Model

LOOK_S = 0.5
LOAD_S = 300.0
"""As long as the gateway's own deadline."""
NameArgument = Annotated[
    str, typer.Argument(help="Name of a model.", metavar="MODEL", autocompletion=completion.models)
]
VersionOption = Annotated[str, typer.Option(help="Which; else the newest.")]
TimeoutOption = Annotated[float, typer.Option(help="Seconds until it must serve.", min=0.1, metavar="SECONDS")]


def register(app: typer.Typer) -> None:
    """Adds the verbs of this module."""
    group = group_of(name="model", help="Versions of models: register, load, unload; `models` lists them.")
    group.command("register")(register_model)
    group.command("load")(load)
    group.command("unload")(unload)
    app.add_typer(group)


def register_model(
    name: Annotated[str, typer.Argument(help="What it is called in requests.", metavar="MODEL")],
    uri: Annotated[str, typer.Argument(help="Its folder, in the mesh's storage: absolute, or below its root.")],
    version: Annotated[str, typer.Option(help="A number above all before it; else the next.")] = "",
    framework: Annotated[str, typer.Option(help="tensorflow, torch or ensemble; else as its files say.")] = "",
    serving: Annotated[str, typer.Option(help="How it is served, a JSON object.", metavar="JSON")] = "",
    load: Annotated[bool, typer.Option("--load/--no-load", help="Serve it, and come back when it does.")] = True,
    timeout: TimeoutOption = LOAD_S,
    home: HomeOption = None,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """Register a folder as a version of a model, and serve it."""
    from recmesh.runtime.progress import Progress

    body: dict[str, Any] = {
        "name": name, "uri": os.path.abspath(uri) if os.path.isdir(uri) else uri, "version": version,
        "framework": framework, "serving": _serving(serving), "load": load,
    }  # fmt: skip
    with connect(home) as mesh, Progress(name, quiet=shape.is_document) as progress:
        progress.update(note="is registered")
        made = mesh.register_model(body)
        if load:
            made = _served(mesh, made, progress.update, within_s=timeout)
    _tell(made, shape, f"{made.name} version {made.version} {'serves' if load else 'is registered'}.")


def load(
    name: NameArgument,
    version: VersionOption = "",
    timeout: TimeoutOption = LOAD_S,
    home: HomeOption = None,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """Serve a version of a model; the one before it serves until then."""
    from recmesh.runtime.progress import Progress

    with connect(home) as mesh, Progress(name, quiet=shape.is_document) as progress:
        progress.update(note="loads and warms up")
        made = mesh.load_model(name, version, timeout_s=timeout)
    _tell(made, shape, f"{made.name} version {made.version} serves.")


def unload(
    name: NameArgument,
    version: Annotated[str, typer.Option(help="Only if it is this one.")] = "",
    home: HomeOption = None,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """Serve a model no more; requests in flight are answered."""
    from recmesh.runtime.progress import Progress

    with connect(home) as mesh, Progress(name, quiet=shape.is_document) as progress:
        progress.update(note="answers what is in flight")
        gone = mesh.unload_model(name, version)
    names = ", ".join(f"{each.name} version {each.version}" for each in gone) or f"{name}: none"
    output.print_done([each.model_dump() for each in gone], shape, f"Served no more: {names}.")


def _served(mesh: "Client", made: "Model", tell: Any, *, within_s: float) -> "Model":
    """The version, once it answers requests; FailedPrecondition with the reason when it cannot."""
    deadline = time.monotonic() + within_s
    while True:
        found = next((each for each in mesh.model(made.name) if each.version == made.version), made)
        if found.state == "ready":
            return found
        if found.state == "failed":
            raise FailedPrecondition(f"{found.name} version {found.version} does not load: {found.reason}")
        if time.monotonic() >= deadline:
            raise DeadlineExceeded(
                f"{found.name} version {found.version} is {found.state} after {within_s:g} s; `recmesh models "
                f"{found.name}` tells how it is"
            )
        tell(note=found.state)
        time.sleep(LOOK_S)


def _serving(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text) if text else {}
    except ValueError as error:
        raise InvalidArgument("--serving is not JSON", violations=[Violation("serving", str(error))]) from None
    if not isinstance(found, dict):
        raise InvalidArgument("--serving is not JSON", violations=[Violation("serving", "must be an object")])
    return found


def _tell(model: "Model", shape: Shape, sentence: str) -> None:
    output.print_done(model.model_dump(), shape, sentence)
