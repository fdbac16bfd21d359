"""Options that several verbs share."""

import os
from pathlib import Path
from typing import Annotated

import typer

from recmesh.cli.mesh.home import Home

HomeOption = Annotated[
    str | None,
    typer.Option(
        "--home",
        help="Data folder of the mesh (default: $RECMESH_HOME, else .recmesh here).",
        metavar="FOLDER",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document instead of text.")]
JobArgument = Annotated[str, typer.Argument(help="Id or name of the job.", metavar="JOB")]
FileArgument = Annotated[Path, typer.Argument(help="YAML or JSON file.", metavar="FILE")]


def home_of(option: str | None) -> Home:
    """The data folder meant."""
    return Home.at(option, os.environ)
