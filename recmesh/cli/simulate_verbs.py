"""simulate."""

import os
import subprocess
import sys

import typer

from recmesh.cli.exit_codes import ExitCode

MODULE = "services.brain.simulator"


def register(app: typer.Typer) -> None:
    """Adds the verb of this module."""
    app.command(
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
        short_help="Compare planners over a trace of jobs on a simulated cluster.",
    )(simulate)


def simulate(context: typer.Context) -> None:
    """Compare planners over a trace of jobs on a simulated cluster: `recmesh simulate --help` lists the options.

    It runs the planners of brain, so it starts brain's module, which needs no mesh; options and exit code are its own.
    """
    from recmesh.cli.mesh.table import services_root  # with it comes pydantic, for which no other verb should wait

    paths = [str(services_root().parent), os.environ.get("PYTHONPATH", "")]
    environment = dict(os.environ) | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    command = [sys.executable, "-m", MODULE, *context.args]
    code = subprocess.run(command, check=False, env=environment).returncode
    if code < 0:  # a signal; that of the keyboard reaches both
        code = ExitCode.INTERRUPTED
    if code:
        raise typer.Exit(code)
