"""loans."""

import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from recmesh.cli import output
from recmesh.cli.connect import connect
from recmesh.cli.options import HomeOption, ShapeOption
from recmesh.cli.output import Shape


def register(app: typer.Typer) -> None:
    """Adds the verb of this module."""
    app.command()(loans)


def loans(
    every: Annotated[bool, typer.Option("--all", help="Also those that are back, or came to nothing.")] = False,
    limit: Annotated[int, typer.Option(help="The newest so many.", min=1, max=1000)] = 100,
    home: HomeOption = None,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """Show what training lends to serving: how much, by whom, since when, and until when."""
    with connect(home) as mesh:
        told = mesh.loans(open_only=not every, limit=limit)
    if shape.is_document:
        output.print_document(told, shape)
    else:
        _print(told, every=every)


def _print(told: Mapping[str, Any], *, every: bool) -> None:
    if not told["enabled"]:
        typer.echo("Nothing is lent here: set RECMESH_LOANS for brain (docs/reference/loans.md).")
        if not told["loans"]:
            return
    else:
        pool = told["pool"]
        typer.echo(
            f"HNs: {pool['used']} running, {pool['needed']} needed; room for {pool['own']} of serving's own and "
            f"{pool['lent']} lent of at most {pool['most']}; {pool['coming']} coming, {pool['returning']} returning, "
            f"{pool['late']} overdue"
        )
        typer.echo(f"Last look: {pool['explanation']}\n")
    now = time.time()
    output.print_table(
        ["job", "state", "for", "due", "renewed", "cause", "why"],
        [
            [
                each["job_id"], each["state"] + (" (late)" if each["late"] else ""),
                output.ago(each["since"], now=now), output.moment(each["due"]) if each["due"] else "-",
                str(each["renewals"]), each["cause"], each["explanation"],
            ]
            for each in told["loans"]
        ],
        empty="Nothing was ever lent." if every else "Nothing is lent now; --all shows what was.",
    )  # fmt: skip
