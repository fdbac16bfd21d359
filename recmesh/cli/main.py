"""Entry point of `recmesh`: the verbs, and the one place where errors become text and exit codes."""

import os
import signal
import sys
import traceback
from typing import Annotated

import typer

from recmesh.cli import (
    chaos_verbs,
    checkpoint_verbs,
    completion,
    context_verbs,
    data_verbs,
    explain_verbs,
    forecast_verbs,
    job_verbs,
    loan_verbs,
    log_verbs,
    mesh_verbs,
    model_verbs,
    partition_verbs,
    registry_verbs,
    simulate_verbs,
    stream_verbs,
    top_verbs,
    webhook_verbs,
)
from recmesh.cli.connect import TYPED_CA_FILE
from recmesh.cli.exit_codes import ExitCode, exit_code, summary
from recmesh.cli.output import print_error
from recmesh.cli.verbs import group
from recmesh.runtime.errors import MeshError

DEBUG = "RECMESH_DEBUG"
"""Of the command: a traceback for each fault that nobody foresaw."""

app = group(
    name="recmesh",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Train, keep fresh and serve deep recommendation models.",
    epilog=f"Exit codes: {summary()}.",
)


@app.callback()
def settings(
    context: Annotated[
        str,
        typer.Option(
            help="The named mesh to speak to (default: $RECMESH_CONTEXT; see `recmesh context`).",
            metavar="NAME", show_default=False, autocompletion=completion.contexts,
        ),
    ] = "",
    ca_file: Annotated[
        str,
        typer.Option(
            help="Certificates (PEM) to trust of an https:// mesh (default: the context's, else $RECMESH_CA_FILE's, "
            "else the system's).",
            metavar="FILE", show_default=False,
        ),
    ] = "",
) -> None:
    """Before each verb."""
    TYPED_CA_FILE.set(ca_file)
    if context:
        os.environ["RECMESH_CONTEXT"] = context
        os.environ.pop("RECMESH_URL", None)      # what is typed is meant


context_verbs.register(app)
mesh_verbs.register(app)
log_verbs.register(app)
job_verbs.register(app)
top_verbs.register(app)
checkpoint_verbs.register(app)
explain_verbs.register(app)
forecast_verbs.register(app)
loan_verbs.register(app)
model_verbs.register(app)
registry_verbs.register(app)
partition_verbs.register(app)
data_verbs.register(app)
chaos_verbs.register(app)
simulate_verbs.register(app)
stream_verbs.register(app)
webhook_verbs.register(app)


def main() -> None:
    """Runs the command line; every expected failure is one block on stderr and an exit code."""
    signal.signal(signal.SIGTERM, _interrupt)  # so that `up` clears away what it has started
    sys.exit(_run())


def _run() -> int:
    out, code = sys.stdout, int(ExitCode.DONE)
    try:
        app(standalone_mode=True)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else ExitCode.FAILED if ended.code else ExitCode.DONE
    except MeshError as error:
        print_error(error)
        code = exit_code(error)
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    except OSError as error:                    # of this machine: a disk, a folder, a right that is missing
        print_error(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))
        code = ExitCode.FAILED
    except Exception as error:
        code = _surprised(error)
    if code == ExitCode.INTERRUPTED:
        print_error("interrupted")
    try:
        out.flush()
        gone = sys.stdout is not out            # typer puts another in its place when nobody reads this one
    except BrokenPipeError:
        gone = True
    if gone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())   # else the interpreter complains at its end
    return ExitCode.DONE if gone else code      # `recmesh jobs | head` is no failure


def _surprised(error: Exception) -> int:
    """What nobody foresaw: a line, and the traceback for those who ask for it."""
    if os.environ.get(DEBUG):
        traceback.print_exception(error)
    print_error(f"{type(error).__name__}: {error}\nThis is a fault of recmesh: {DEBUG}=1 shows where it is.")
    return ExitCode.FAILED


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
