"""context add, use, list, remove: which mesh the other verbs speak to."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recmesh.cli import output
from recmesh.cli.options import ContextArgument, ShapeOption
from recmesh.cli.output import Shape
from recmesh.cli.verbs import group as group_of

if TYPE_CHECKING:
    from recmesh.client.contexts import Contexts


def register(app: typer.Typer) -> None:
    """Adds the verbs of this module."""
    group = group_of(name="context", help="Named meshes: a cluster's, a laptop's.")
    for verb in (add, use, list_contexts, remove):
        group.command(verb.__name__.removesuffix("_contexts"))(verb)
    app.add_typer(group)


def add(
    name: Annotated[str, typer.Argument(help="What to call it.", metavar="NAME")],
    url: Annotated[str, typer.Option(help="Address of its gateway.", metavar="URL")] = "",
    home: Annotated[str, typer.Option(help="Or its data folder, on this machine.", metavar="FOLDER")] = "",
    namespace: Annotated[
        str, typer.Option(help="Or its namespace in a cluster; kubectl leads there.", metavar="NAMESPACE")
    ] = "",
    kube_context: Annotated[
        str, typer.Option(help="With --namespace: which cluster; kubectl's current one without it.", metavar="NAME")
    ] = "",
    api_key_file: Annotated[str, typer.Option(help="File with the API key.", metavar="FILE")] = "",
    ca_file: Annotated[str, typer.Option(help="Certificates (PEM) to trust for it.", metavar="FILE")] = "",
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """Name a mesh; the first one named is the current one."""
    from recmesh.client.contexts import Context, Contexts

    known = Contexts.read(os.environ)
    home, api_key_file, ca_file = (
        str(Path(path).expanduser().absolute()) if path else "" for path in (home, api_key_file, ca_file)
    )
    context = Context(url, home, api_key_file, ca_file, kube_context, namespace)
    context.key()                                # now, rather than at the first call
    known.add(name, context)
    current = " and the current context" if known.current == name else ""
    output.print_done(_document(known, name), shape, f"{name} is {context.where}{current}.")


def use(name: ContextArgument, shape: ShapeOption = Shape.TABLE) -> None:
    """Make it the one that verbs speak to."""
    from recmesh.client.contexts import Contexts

    known = Contexts.read(os.environ)
    known.use(name)
    output.print_done(_document(known, name), shape, f"{name} is the current context.")


def list_contexts(shape: ShapeOption = Shape.TABLE) -> None:
    """List named meshes; the current one has a star."""
    from recmesh.client.contexts import Contexts

    known = Contexts.read(os.environ)
    if shape.is_document:
        output.print_document([_document(known, name) for name in known.known], shape)
        return
    rows = [
        ["*" if name == known.current else "", name, each.where, each.api_key_file]
        for name, each in known.known.items()
    ]
    output.print_table(["current", "name", "mesh", "key"], rows, empty="There are no contexts.")


def remove(name: ContextArgument, shape: ShapeOption = Shape.TABLE) -> None:
    """Forget it; the mesh itself stays as it is."""
    from recmesh.client.contexts import Contexts

    Contexts.read(os.environ).remove(name)
    output.print_done({"removed": name}, shape, f"{name} is forgotten.")


def _document(known: "Contexts", name: str) -> dict[str, Any]:
    return {"name": name, "current": name == known.current, **asdict(known.known[name])}
