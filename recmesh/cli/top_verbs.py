"""top: jobs, their roles, the machines that these run on, and models under traffic; live, or as one document."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recmesh.cli import output
from recmesh.cli.connect import connect
from recmesh.cli.job_verbs import JOB_COLUMNS, job_row, role_row
from recmesh.cli.options import HomeOption, ShapeOption
from recmesh.cli.output import Shape
from recmesh.runtime.errors import NotFound, PermissionDenied

if TYPE_CHECKING:
    from recmesh.client import Client, Job
    from recmesh.client.views import Served

MOST_JOBS = 20
NODE_COLUMNS = ["node", "processes", "jobs", "cores used", "cores", "memory", "limits"]
MODEL_COLUMNS = ["model", "version", "state", "requests/s", "p50", "p99", "in it", "requests", "errors"]
ROLE_COLUMNS = [
    "job", "role", "node", "state", "process", "samples/s", "data", "pull", "compute", "push", "cores", "memory",
    "rows",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Node:
    """A machine, by the processes of jobs that run on it."""

    node: str
    processes: dict[str, int]
    """By role."""
    jobs: int
    cpu_used: float | None
    """Cores, between two looks; None at the first."""
    cpu_limit: float
    memory_bytes: int
    memory_limit_bytes: int


@dataclass(frozen=True, slots=True)
class Look:
    """All that `top` shows, of one moment."""

    at: float
    jobs: "Sequence[Job]"
    nodes: Sequence[Node]
    models: "Sequence[Served]"

    def document(self) -> dict[str, Any]:
        """With the fields of the API."""
        return {
            "at": self.at,
            "jobs": [job.model_dump(exclude={"spec", "transitions", "notes"}) for job in self.jobs],
            "nodes": [
                {name: getattr(node, name) for name in Node.__dataclass_fields__} for node in self.nodes
            ],
            "models": [model.model_dump() for model in self.models],
        }


def register(app: typer.Typer) -> None:
    """Adds the verb of this module."""
    app.command()(top)


def top(
    interval: Annotated[float, typer.Option(help="Seconds between looks.", min=0.2)] = 1.0,
    home: HomeOption = None,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """Watch jobs, their roles, machines and models live, until q is pressed; once, when the output is no terminal."""
    with connect(home) as mesh:
        if shape.is_document or not sys.stdout.isatty():
            first = look(mesh)
            time.sleep(min(interval, 1.0))      # cores in use show between two looks only
            found = look(mesh, first)
            if shape.is_document:
                output.print_document(found.document(), shape)
            else:
                _print(found)
            return
        from rich.console import Group
        from rich.live import Live

        from recmesh.cli.keys import keys

        with keys() as keyboard, Live(auto_refresh=False, screen=True) as screen:
            leaving, before = False, None
            while not leaving:
                found = look(mesh, before)
                before = found
                tables = [output.rich_table(columns, rows, title=title) for title, columns, rows in _tables(found)]
                screen.update(Group(*(part for table in tables for part in (table, ""))), refresh=True)
                leaving = keyboard.pressed("qQ", within_s=interval)


def look(mesh: "Client", before: Look | None = None) -> Look:
    """What is there now; cores in use are since the look before."""
    page = mesh.jobs(limit=MOST_JOBS)
    jobs = [job if job.over else mesh.job(job.job_id) for job in page.jobs]
    at = time.time()
    try:
        models = mesh.serving()
    except (NotFound, PermissionDenied):    # a gateway of a version before this; a key for jobs alone
        models = []
    return Look(at, jobs, nodes(jobs, at=at, before=before), models)


def nodes(jobs: "Sequence[Job]", *, at: float, before: Look | None = None) -> list[Node]:
    """Machines by name; processes that have not said where they run are of ``?``."""
    earlier = {
        role.handle: role.cpu_s for job in (before.jobs if before else []) for role in job.roles if role.handle
    }
    found: dict[str, list[tuple[Job, Any]]] = {}
    for job in jobs:
        for role in [] if job.over else job.roles:
            if role.state != "exited":
                found.setdefault(role.node or "?", []).append((job, role))
    made = []
    for name, here in sorted(found.items()):
        roles = [role for _, role in here]
        used = None
        if before is not None and at > before.at:
            spent = [role.cpu_s - earlier[role.handle] for role in roles if role.handle in earlier]
            used = round(sum(max(0.0, each) for each in spent) / (at - before.at), 2)
        counts: dict[str, int] = {}
        for role in roles:
            counts[role.role] = counts.get(role.role, 0) + 1
        made.append(Node(
            name, counts, len({job.job_id for job, _ in here}), used, sum(role.cpu_limit for role in roles),
            sum(role.memory_bytes for role in roles), sum(role.memory_limit_bytes for role in roles),
        ))  # fmt: skip
    return made


def _tables(found: Look) -> list[tuple[str, list[str], list[list[str]]]]:
    """Those that have rows, and that of jobs."""
    columns = [*JOB_COLUMNS[:-1], "lag", JOB_COLUMNS[-1]]
    jobs = [[*row[:-1], _lag(job), row[-1]] for job in found.jobs for row in [job_row(job)]]
    tables = [
        ("", columns, jobs), ("Roles", ROLE_COLUMNS, _role_rows(found.jobs)),
        ("Nodes", NODE_COLUMNS, [_node_row(node) for node in found.nodes]),
        ("Models", MODEL_COLUMNS, [row for model in found.models for row in _model_rows(model)]),
    ]
    return [each for each in tables if each[2] or not each[0]]


def _print(found: Look) -> None:
    for number, (title, columns, rows) in enumerate(_tables(found)):
        if number:
            print(f"\n{title}")
        output.print_table(columns, rows, empty="There are no jobs.")


def _role_rows(jobs: "Sequence[Job]") -> list[list[str]]:
    return [
        [job.name, told[0], role.node, *told[1:10], output.number(role.rows) if role.rows else ""]
        for job in jobs if not job.over for role in job.roles if role.state != "exited" for told in [role_row(role)]
    ]  # fmt: skip


def _node_row(node: Node) -> list[str]:
    return [
        node.node, ", ".join(f"{count} {role}" for role, count in sorted(node.processes.items())), str(node.jobs),
        "" if node.cpu_used is None else f"{node.cpu_used:.1f}", f"of {node.cpu_limit:g}" if node.cpu_limit else "",
        output.size(node.memory_bytes) if node.memory_bytes else "",
        output.size(node.memory_limit_bytes) if node.memory_limit_bytes else "",
    ]  # fmt: skip


def _model_rows(model: "Served") -> list[list[str]]:
    """The rate is the model's, and so stands with its first version."""
    return [
        [
            model.name, each.version, each.state, output.number(model.requests_per_s) if number == 0 else "",
            _latency(each.p50_s), _latency(each.p99_s), str(each.in_flight or ""), f"{each.requests:,}",
            f"{each.errors:,}" if each.errors else "",
        ]
        for number, each in enumerate(sorted(model.versions, key=lambda one: (not one.is_ready, -_number(one.version))))
    ]  # fmt: skip


def _number(version: str) -> int:
    return int(version) if version.isdigit() else 0


def _latency(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds else ""


def _lag(job: "Job") -> str:
    progress = job.progress
    if job.over or not progress.partitions:
        return ""
    behind = f"{output.number(progress.lag_messages)}, {output.duration(progress.lag_s)}"
    return behind if progress.lag_messages else "none"
