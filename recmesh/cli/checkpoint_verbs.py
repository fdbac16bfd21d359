"""checkpoints, checkpoint."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from recmesh.cli import output
from recmesh.cli.connect import connect
from recmesh.cli.exit_codes import ExitCode
from recmesh.cli.options import HomeOption, JobArgument, ShapeOption
from recmesh.cli.output import Shape

if TYPE_CHECKING:
    from recmesh.client import Client
    from recmesh.client.views import Checkpoint


def register(app: typer.Typer) -> None:
    """Adds the verbs of this module."""
    for verb in (checkpoints, checkpoint):
        app.command()(verb)


def checkpoints(
    job: JobArgument,
    verify: Annotated[bool, typer.Option("--verify", help="Read and hash every one first.")] = False,
    home: HomeOption = None,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """List a job's checkpoints; with --verify exit code 1 when one is damaged."""
    with connect(home) as mesh:
        job_id = mesh.find_job(job)
        found = mesh.checkpoints(job_id)
        if verify:
            found = _verified(mesh, job_id, found, quiet=shape.is_document)
    damaged = [item for item in found if item.state == "damaged"]
    if shape.is_document:
        output.print_document([item.model_dump() for item in found], shape)
    else:
        _print_checkpoints(found)
    if verify and damaged:
        raise typer.Exit(ExitCode.FAILED)


def _verified(
    mesh: "Client", job_id: str, found: "list[Checkpoint]", *, quiet: bool
) -> "list[Checkpoint]":
    """Reads one after the other, so that it can be told how far it is; how they are in the end."""
    from recmesh.runtime.progress import Progress

    committed = [item for item in found if item.state == "committed"]
    sizes = sum(item.size_bytes for item in committed)
    read = 0
    with Progress("verify", total=sizes, amount=output.size, quiet=quiet) as progress:
        for number, item in enumerate(committed):
            progress.update(read, note=f"checkpoint {item.snapshot}, {number + 1} of {len(committed)}")
            found = mesh.checkpoints(job_id, verify=True, snapshot=item.snapshot)
            read += item.size_bytes
    return found


def _print_checkpoints(found: "Sequence[Checkpoint]") -> None:
    rows = [
        [
            str(c.snapshot),
            c.state,
            output.clock(c.created),
            output.number(c.samples),
            output.size(c.size_bytes),
            c.uri,
        ]
        for c in found
    ]
    output.print_table(["number", "state", "at", "samples", "size", "uri"], rows, empty="There is none yet.")
    for c in found:
        if c.reason:
            print(f"\n{c.snapshot} is {c.state}: {c.reason}")


def checkpoint(job: JobArgument, home: HomeOption = None, shape: ShapeOption = Shape.TABLE) -> None:
    """Take a checkpoint now."""
    from recmesh.runtime.progress import Progress

    with connect(home) as mesh:
        job_id = mesh.find_job(job)
        with Progress("checkpoint", quiet=shape.is_document):
            number = mesh.checkpoint(job_id)
    output.print_done({"job_id": job_id, "snapshot": number}, shape, f"Checkpoint {number}.")
