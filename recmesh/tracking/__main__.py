"""The process: reports from standard input, answers to standard output, until the input ends."""

import argparse
import os
import sys
from pathlib import Path

import orjson

from recmesh.tracking import Report, Sink


def sinks(arguments: argparse.Namespace) -> dict[str, Sink]:
    """Those that are asked for; ImportError names the library that is missing."""
    made: dict[str, Sink] = {}
    if arguments.tensorboard:
        from recmesh.tracking.tensorboard import TensorBoard

        made["tensorboard"] = TensorBoard(Path(arguments.tensorboard))
    if arguments.mlflow:
        from recmesh.tracking.mlflow import Mlflow

        made["mlflow"] = Mlflow(arguments.mlflow)
    return made


def write(found: dict[str, Sink], report: Report) -> dict[str, str]:
    """By sink: why it has not taken the report."""
    errors: dict[str, str] = {}
    for name in report.sinks:
        if name not in found:
            errors[name] = "jobmaster was started without it since the job was taken"
            continue
        try:
            found[name].write(report)
        except Exception as error:     # a library's, of whatever kind: the other sink and the next report go on
            errors[name] = f"{type(error).__name__}: {error}"[:500]
    return errors


def main() -> None:
    """One answer for each line."""
    parser = argparse.ArgumentParser(prog="python -m recmesh.tracking")
    parser.add_argument("--tensorboard", default="", help="folder of event files")
    parser.add_argument("--mlflow", default="", help="tracking URI")
    arguments = parser.parse_args()
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")    # two lines of log for each run
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)                      # what libraries print is no answer
    found = sinks(arguments)
    for line in sys.stdin.buffer:
        value = orjson.loads(line)
        report = Report(**value | {"sinks": tuple(value["sinks"])})
        answers.write(orjson.dumps({"errors": write(found, report)}) + b"\n")
        answers.flush()
    for sink in found.values():
        sink.close()


if __name__ == "__main__":
    main()
