"""Stopping a mesh: in an order that lets everybody finish, and with nothing left running."""

import shutil
import signal
from collections.abc import Callable
from contextlib import suppress

from recmesh.cli.mesh import state
from recmesh.cli.mesh.home import Home
from recmesh.runtime.process import ProcessHandle, find, terminate_all

SUPERVISOR = "supervisor"
_STORES = ("nats", "valkey")
ROLE_GRACE_S = 10.0
SERVICE_GRACE_S = 15.0


def supervisor(home: Home) -> ProcessHandle | None:
    """The living supervisor of this folder."""
    return next((item for item in find(home.run) if item.name == SUPERVISOR and item.alive()), None)


def living(home: Home) -> list[ProcessHandle]:
    """All living processes of this folder but the supervisor: components, and roles of jobs."""
    return [item for item in find(home.run, recursive=True) if item.alive() and item.name != SUPERVISOR]


def roles(home: Home) -> list[ProcessHandle]:
    """The living processes of jobs."""
    return [item for item in living(home) if item.run_dir != home.components]


def stop_everything(home: Home, *, on_exit: Callable[[ProcessHandle], None] = lambda _: None) -> None:
    """Jobmaster first (it would replace the roles), roles while the rest still serves them, stores last.

    Of the roles the parameter servers last: workers drain by pushing what they hold.
    """
    alive = living(home)
    components = {item.name: item for item in alive if item.run_dir == home.components}
    jobs = [item for item in alive if item.run_dir != home.components]
    servers = [item for item in jobs if item.name.startswith("ps-")]
    stages: list[tuple[list[ProcessHandle], float]] = [
        ([components[name] for name in ("jobmaster",) if name in components], SERVICE_GRACE_S),
        ([item for item in jobs if item not in servers], ROLE_GRACE_S),
        (servers, ROLE_GRACE_S),
        ([item for name, item in components.items() if name not in (*_STORES, "jobmaster")], SERVICE_GRACE_S),
        ([components[name] for name in _STORES if name in components], SERVICE_GRACE_S),
    ]
    for handles, grace_s in stages:
        terminate_all(handles, grace_s=grace_s, on_exit=on_exit)
    for handle in find(home.components):
        handle.forget()
    shutil.rmtree(home.shm, ignore_errors=True)


def down(home: Home) -> bool:
    """Stops supervisor and mesh, whichever of them lives; False when nothing ran."""
    keeper = supervisor(home)
    ran = keeper is not None or bool(living(home))
    if keeper is not None:
        keeper.id.send(signal.SIGCONT)  # a suspended one could not listen
        if keeper.terminate(60.0) is None:
            keeper.kill()
    stop_everything(home)  # what a killed supervisor left
    if keeper is not None:
        with suppress(OSError):
            keeper.forget()
    if ran:
        mark_stopped(home)
    return ran


def mark_stopped(home: Home) -> None:
    """mesh.json keeps the addresses for the next start and says that nothing runs."""
    mesh = state.load(home.mesh_file)
    for item in mesh.components.values():
        item.state, item.pid = "stopped", None
    mesh.supervisor_pid = None
    with suppress(OSError):
        mesh.save(home.mesh_file)
