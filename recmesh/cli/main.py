"""Entry point of `recmesh`: the verbs, and the one place where errors become text and exit codes."""

import os
import signal
import sys

import typer

from recmesh.cli import (
    chaos_verbs,
    checkpoint_verbs,
    data_verbs,
    explain_verbs,
    forecast_verbs,
    job_verbs,
    log_verbs,
    mesh_verbs,
    model_verbs,
    partition_verbs,
    simulate_verbs,
    stream_verbs,
)
from recmesh.cli.exit_codes import ExitCode, exit_code
from recmesh.cli.output import print_error
from recmesh.runtime.errors import MeshError

app = typer.Typer(
    name="recmesh",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Train, keep fresh and serve deep recommendation models.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage or input, 3 mesh not reachable, 4 not found, "
    "5 refused, 6 the job did not succeed, 130 interrupted.",
)
mesh_verbs.register(app)
log_verbs.register(app)
job_verbs.register(app)
checkpoint_verbs.register(app)
explain_verbs.register(app)
forecast_verbs.register(app)
model_verbs.register(app)
partition_verbs.register(app)
data_verbs.register(app)
chaos_verbs.register(app)
simulate_verbs.register(app)
stream_verbs.register(app)


def main() -> None:
    """Runs the command line; every expected failure is one block on stderr and an exit code."""
    signal.signal(signal.SIGTERM, _interrupt)  # so that `up` clears away what it has started
    try:
        app(standalone_mode=True)
    except MeshError as error:
        print_error(error)
        sys.exit(exit_code(error))
    except KeyboardInterrupt:
        print_error("interrupted")
        sys.exit(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # `recmesh jobs | head` is no failure
        sys.exit(ExitCode.DONE)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
