"""logs: of a service (its file) or of a role of a job (through gateway)."""

import json as json_module
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recmesh.cli import completion, output
from recmesh.cli.connect import connect
from recmesh.cli.mesh import state
from recmesh.cli.options import HomeOption, ShapeOption, elsewhere, home_of
from recmesh.cli.output import Shape
from recmesh.runtime.errors import NotFound

_POLL_S = 0.2
_JOB_POLL_S = 1.0
_JOB_LINES = 2000
_READ_BYTES = 1 << 20

if TYPE_CHECKING:
    from recmesh.client import RoleLog


def register(app: typer.Typer) -> None:
    """Adds the verbs of this module."""
    app.command()(logs)


def logs(
    name: Annotated[
        str,
        typer.Argument(
            help="A service (brain, nats, supervisor, ...), or a job.", metavar="SERVICE|JOB",
            autocompletion=completion.logged,
        ),
    ],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as more is written.")] = False,
    tail: Annotated[int, typer.Option("--tail", "-n", help="How many of the last lines.", min=0)] = 100,
    role: Annotated[
        str, typer.Option(help="Of a job: ps, worker, data, evaluator or finisher.", autocompletion=completion.roles)
    ] = "worker",
    index: Annotated[int, typer.Option(help="Of a job: which of the role's processes.", min=0)] = 0,
    raw: Annotated[bool, typer.Option("--raw", help="Lines as they were written, even JSON.")] = False,
    home: HomeOption = None,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """Show what a service or a job's role wrote; -o json gives a document for each line."""
    folder = None if elsewhere(home) else home_of(home)
    if folder and (name in state.load(folder.mesh_file).components or name == "supervisor"):
        path = folder.log(name)
        if not path.exists():
            raise NotFound(f"{name} has written no log yet ({path})")
        lines = _follow(path, tail) if follow else iter(_tail(path, tail))
    else:
        lines = _job_lines(name, role, index, tail, follow=follow, home=home)
    for line in lines:
        if shape.is_document:
            print(output.line(as_document(line), shape), flush=follow)
        else:
            print(line if raw else readable(line), flush=follow)


def as_document(line: str) -> dict[str, Any]:
    """A JSON log line as it is, another under `message`."""
    try:
        item = json_module.loads(line) if line.startswith("{") else None
    except ValueError:
        item = None
    return item if isinstance(item, dict) else {"message": line}


def readable(line: str) -> str:
    """A JSON log line as `time LEVEL logger: message key=value`; another line as it is."""
    if not line.startswith("{"):
        return line
    try:
        item = json_module.loads(line)
    except ValueError:
        return line
    if not isinstance(item, dict) or "message" not in item:
        return line
    moment = str(item.pop("at", item.pop("time", item.pop("timestamp", ""))))
    level = str(item.pop("level", "")).upper()
    logger, message = str(item.pop("logger", "")), str(item.pop("message"))
    trouble = str(item.pop("exception", item.pop("exc_info", "")) or "")
    for noise in ("service", "trace_id", "span_id", "pid", "version"):
        item.pop(noise, None)
    rest = " ".join(f"{key}={value}" for key, value in item.items())
    text = " ".join(
        part for part in (moment, f"{level:<7}", f"{logger}:" if logger else "", message, rest) if part
    )
    return f"{text}\n{trouble}" if trouble else text


def _job_lines(
    name: str, role: str, index: int, tail: int, *, follow: bool, home: str | None
) -> Iterator[str]:
    with connect(home) as mesh:
        job_id = mesh.find_job(name)
        found = mesh.logs(job_id, role=role, index=index, tail=max(1, tail))
        over, seen = False, _lines(found)
        if not found and not follow:
            had = ", ".join(f"{item.role}-{item.index}" for item in mesh.job(job_id).roles)
            raise NotFound(f"job {name} has had no {role}-{index}; it has had {had or 'no process yet'}")
        if not seen:
            print(f"{role}-{index} of {name} has written nothing yet.", file=sys.stderr)
        yield from seen
        while follow and not over:
            time.sleep(_JOB_POLL_S)
            over = mesh.job(job_id).over  # asked first, so that the last lines are read after the end
            now = _lines(mesh.logs(job_id, role=role, index=index, tail=_JOB_LINES))
            yield from _new(seen, now)
            seen = now


def _lines(logs: "list[RoleLog]") -> list[str]:
    """All lines; each with its process's name when there are several."""
    if len(logs) == 1:
        return logs[0].lines
    return [f"{log.role}-{log.index}  {line}" for log in logs for line in log.lines]


def _new(before: list[str], now: list[str]) -> list[str]:
    """What `now` has after the end of `before`: both are last lines of one growing text."""
    for overlap in range(min(len(before), len(now)), 0, -1):
        if before[-overlap:] == now[:overlap]:
            return now[overlap:]
    last = before[-1] if before else None
    places = [n for n, line in enumerate(now) if line == last]
    return now[places[-1] + 1 :] if places else now


def _tail(path: Path, count: int) -> list[str]:
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _READ_BYTES))
        return file.read().decode(errors="replace").splitlines()[-count:] if count else []


def _follow(path: Path, count: int) -> Iterator[str]:
    """The last lines, then all that comes; goes on when the file is cut or replaced."""
    yield from _tail(path, count)
    position, rest = path.stat().st_size, ""
    while True:
        size = path.stat().st_size if path.exists() else 0
        if size < position:
            position, rest = 0, ""
        if size > position:
            with path.open("rb") as file:
                file.seek(position)
                data = file.read(_READ_BYTES)
            position += len(data)
            *lines, rest = (rest + data.decode(errors="replace")).split("\n")
            yield from lines
        else:
            time.sleep(_POLL_S)
