"""up, down, status, doctor, version."""

import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recmesh.cli import output
from recmesh.cli.exit_codes import ExitCode
from recmesh.cli.mesh import exits, state, stop
from recmesh.cli.mesh.home import Home
from recmesh.cli.options import HomeOption, ShapeOption, home_of
from recmesh.cli.output import Shape
from recmesh.runtime import variables
from recmesh.runtime.errors import MeshError

if TYPE_CHECKING:
    from recmesh.cli.mesh.start import UpResult
    from recmesh.runtime.progress import Progress


def register(app: typer.Typer) -> None:
    """Adds the verbs of this module."""
    app.command()(up)
    app.command()(down)
    app.command()(status)
    app.command()(doctor)
    app.command()(version)


_OF_THE_SHELL = {
    "RECMESH_HOME", "RECMESH_URL", "RECMESH_API_KEY", "RECMESH_DATA", "RECMESH_NATS_URL", "RECMESH_NATS_TOKEN",
    "RECMESH_CONTEXT", "RECMESH_CONTEXTS", "RECMESH_CA_FILE",
}  # fmt: skip
"""Variables that commands read themselves."""


def up(
    home: HomeOption = None,
    listen: Annotated[
        str, typer.Option(help="Address for the API; beyond loopback it needs an API key.", metavar="ADDRESS")
    ] = "",
    timeout: Annotated[float, typer.Option(help="Seconds until everything must be ready.")] = 180.0,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """Start the mesh on this machine, or find it running; what changed settings come to is told."""
    from recmesh.cli.mesh import config as configuration
    from recmesh.cli.mesh.start import UpOptions
    from recmesh.cli.mesh.start import up as start
    from recmesh.runtime.progress import Progress

    folder = home_of(home)
    ours = {name for name in os.environ if name.startswith("RECMESH_") and not name.startswith("RECMESH_BENCH_")}
    if listed := ", ".join(sorted(ours - _OF_THE_SHELL)):
        print(f"note: {listed}: services get none of the shell's; write [env] in {folder.config_file}", file=sys.stderr)
    for name, nearest in variables.unknown(ours).items():
        print(f"warning: {variables.complaint(name, nearest)}", file=sys.stderr)
    given = configuration.read(folder.config_file).get("env", {})
    for name, nearest in variables.unknown(given).items():
        print(f"warning: {folder.config_file}, [env]: {variables.complaint(name, nearest)}", file=sys.stderr)
    options = UpOptions(listen=listen, timeout_s=timeout)
    with Progress("up", unit="ready", timed=False, quiet=shape.is_document) as progress:
        result = start(folder, os.environ, options, on_progress=lambda mesh: _advance(progress, mesh))
    if shape.is_document:
        done = {name: getattr(result, name) for name in ("ran_already", "changed", "restarted", "kept")}
        output.print_document(_document(folder, result.mesh) | done, shape)
        return
    if result.ran_already:
        print(f"The mesh in {folder.root} is running, with these settings: nothing was done.")
    elif result.changed or result.restarted:
        print(f"The mesh in {folder.root} was running, and has other settings now ({result.seconds:.1f} s).")
        print(_done(result))
    else:
        print(f"The mesh in {folder.root} is up ({result.seconds:.1f} s).")
    for name in result.kept:
        print(f"note: {name} of {folder.config_file} waits: `up` was told otherwise, which `recmesh down` forgets")
    _print_components(result.mesh)
    if result.mesh.gateway:
        print(f"\nREST API  {result.mesh.gateway}/v1  (described at {result.mesh.gateway}/docs)")
        print("Try       recmesh submit examples/flights/job.yaml")


def down(
    home: HomeOption = None,
    save: Annotated[
        float, typer.Option(help="Seconds for a last snapshot of each job that trains; 0: none.", min=0, max=600)
    ] = 10.0,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """Stop the mesh and the roles of its jobs, which go on from their checkpoint after the next `up`."""
    folder = home_of(home)
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        if not shape.is_document:
            print(text)

    if save and stop.supervisor(folder) and state.load(folder.mesh_file).ready and stop.roles(folder):
        from recmesh.cli.connect import connect
        from recmesh.cli.mesh.save import save_jobs

        try:
            with connect(str(folder.root)) as mesh:
                save_jobs(mesh, within_s=save, tell=tell)
        except MeshError as error:  # it goes down all the same
            tell(f"No snapshots: {error.message}")
    stopped = stop.down(folder)
    document = {"home": str(folder.root), "stopped": stopped, "snapshots": told}
    output.print_done(document, shape, f"The mesh in {folder.root} is {'down' if stopped else 'not running'}.")


def status(
    home: HomeOption = None,
    last: Annotated[int, typer.Option(help="How many exits to show.")] = 5,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """Show the mesh's processes, their addresses, and how processes ended lately."""
    folder = home_of(home)
    mesh = state.load(folder.mesh_file)
    keeper, living = stop.supervisor(folder), stop.living(folder)
    if keeper is None:  # nobody keeps the file true: look for ourselves
        alive = {handle.name: handle.pid for handle in living if handle.run_dir == folder.components}
        for name, item in mesh.components.items():
            item.pid = alive.get(name)
            item.state = "unsupervised" if item.pid else "stopped"
    roles = [handle for handle in living if handle.run_dir != folder.components]
    ended = exits.read(folder.exits_file, last=last)
    full = folder.room.objection() if keeper or living else ""  # the supervisor could not write it down
    if shape.is_document:
        output.print_document(
            _document(folder, mesh)
            | {"supervisor": keeper.pid if keeper else None, "roles": len(roles), "exits": ended}
            | {"ready": mesh.ready and not full, "degraded": full},
            shape,
        )
    elif not mesh.components:
        print(f"There is no mesh in {folder.root}.")
    else:
        _print_components(mesh)
        for name, item in mesh.components.items():
            if item.reason and item.state not in ("ready", "stopped"):
                print(f"\n{name} is not ready: {item.reason}")
        if full:
            print(f"\nDegraded: {full}. Writes are refused; they go on by themselves when there is room again.")
        print(f"\n{len(roles)} role processes of jobs")
        if keeper is None and living:
            print("The supervisor is gone and nothing restarts what dies: run `recmesh up`.")
        if ended:
            print("\nLast exits")
            rows = [
                [output.clock(item["ended_at"]), item["name"], str(item["pid"]), item["reason"]]
                for item in ended
            ]
            output.print_table(["at", "name", "pid", "reason"], rows)
    if keeper is None or full or not mesh.ready:
        raise typer.Exit(ExitCode.UNREACHABLE)


def doctor(home: HomeOption = None, shape: ShapeOption = Shape.TABLE) -> None:
    """Check this machine, and say what is missing and how to mend it."""
    from recmesh.cli.mesh.doctor import examine

    findings = examine(home_of(home))
    if shape.is_document:
        output.print_document([asdict(item) for item in findings], shape)
    else:
        output.print_table(["check", "verdict", "found"], [[i.check, i.verdict, i.found] for i in findings])
        for item in findings:
            if item.mend:
                print(f"\n{item.check}: {item.mend}")
    if any(item.verdict == "missing" for item in findings):
        raise typer.Exit(ExitCode.FAILED)


def version(shape: ShapeOption = Shape.TABLE) -> None:
    """Show the versions of recmesh and Python."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        mine = installed("recmesh")
    except PackageNotFoundError:
        mine = "not installed"
    if shape.is_document:
        output.print_document({"recmesh": mine, "python": sys.version.split()[0]}, shape)
    else:
        print(f"recmesh {mine} (Python {sys.version.split()[0]})")


def _done(result: "UpResult") -> str:
    """What a change of settings came to."""
    what = f"Changed: {', '.join(result.changed) or 'how they are started'}. "
    if not result.restarted:
        return what + "No process had to be started again."
    return f"{what}Started again for it: {', '.join(result.restarted)}; jobs go on."


def _document(folder: Home, mesh: state.MeshState) -> dict[str, Any]:
    return {
        "home": str(folder.root), "ready": mesh.ready, "gateway": mesh.gateway,
        "components": {name: asdict(item) for name, item in mesh.components.items()},
    }  # fmt: skip


def _print_components(mesh: state.MeshState) -> None:
    rows = []
    for name, item in mesh.components.items():
        api = item.addresses.get("rpc") or item.addresses.get("url", "")
        dashboard = item.addresses.get("http", "")
        again = (
            f"{item.restarts} ({item.last_exit})" if item.restarts and item.last_exit else str(item.restarts)
        )
        rows.append([name, item.state, str(item.pid or ""), again, api, dashboard])
    output.print_table(["name", "state", "pid", "restarts", "api", "dashboard"], rows)


def _advance(progress: "Progress", mesh: state.MeshState) -> None:
    """Who is ready, and who is not."""
    late = [name for name, item in mesh.components.items() if item.state != "ready"]
    total = len(mesh.components)
    progress.update(total - len(late), total=total, note=f"{' '.join(late)} not yet" if late else "")
