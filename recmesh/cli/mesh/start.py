"""`recmesh up`: prepare, hand over to the supervisor, wait until all is ready, or leave nothing behind."""

import contextlib
import errno
import json
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from recmesh.cli.mesh import config as configuration
from recmesh.cli.mesh import ports, rounds, state, stop
from recmesh.cli.mesh.config import MeshConfig
from recmesh.cli.mesh.home import Home
from recmesh.cli.mesh.rounds import Round
from recmesh.cli.mesh.table import SERVICE_MESH, Table
from recmesh.runtime.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument, Unavailable, Violation
from recmesh.runtime.process import ProcessHandle, launch

_POLL_S = 0.05
_DEFAULT_PORTS = {"NATS": 4222, "Valkey": 6379, "PostgreSQL": 5432}


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What the caller of `up` says beyond the configuration file."""

    listen: str = ""
    timeout_s: float = 180.0
    table: Table = SERVICE_MESH
    """Tests bring smaller meshes."""


@dataclass(frozen=True, slots=True)
class UpResult:
    """The mesh as it is when `up` returns."""

    mesh: state.MeshState
    ran_already: bool
    """With these settings: nothing was done."""
    seconds: float
    changed: tuple[str, ...] = ()
    """Settings of a running mesh that are others than before: `listen`, `env.RECMESH_CORES`."""
    restarted: tuple[str, ...] = ()
    """Components that therefore were started again, or for the first time."""
    kept: tuple[str, ...] = ()
    """Settings of config.toml that do not hold, as an earlier `up` was told otherwise."""


def up(
    home: Home,
    env: Mapping[str, str],
    options: UpOptions,
    *,
    on_progress: Callable[[state.MeshState], None] = lambda _: None,
) -> UpResult:
    """Returns when all is ready. Any failure is one MeshError, after which nothing new is left running."""
    began = time.monotonic()
    file_values = configuration.read(home.config_file)
    home.make()
    with home.lock("up", "another `recmesh up` is at work"):
        keeper = stop.supervisor(home)
        before = stop.living(home)
        previous = rounds.load(home)
        told = dict(previous.told) if previous and (keeper or before) else {}
        told |= {"listen": options.listen} if options.listen else {}
        told |= {"api_key": env["RECMESH_API_KEY"]} if env.get("RECMESH_API_KEY") else {}
        values = file_values | told
        config = configuration.check(values, home.config_file)
        check_listen(config.listen)
        _check_external(config)
        chosen = _ports(home, config, options, {handle.name for handle in before})
        components = options.table.components(home, config, chosen, home.secrets())
        wanted = Round(secrets.token_hex(8), values, chosen, components, told)
        unchanged = previous is not None and wanted == replace(previous, id=wanted.id)
        if keeper is not None and unchanged and previous is not None:
            wanted = previous
        else:
            wanted.save(home)
        if keeper is None:
            keeper = _launch_supervisor(home, env)
        elif wanted is not previous:
            keeper.id.send(signal.SIGHUP)
        try:
            mesh = _wait(home, keeper, wanted, began + options.timeout_s, on_progress)
        except BaseException:
            if not before:  # a mesh that lived before stays in the supervisor's hands
                stop.down(home)
            raise
        changed, restarted = _difference(previous, wanted) if previous and before else ((), ())
        kept = tuple(sorted(name for name in told if name in file_values and file_values[name] != told[name]))
        return UpResult(mesh, bool(before) and unchanged, time.monotonic() - began, changed, restarted, kept)


def _difference(previous: Round, wanted: Round) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of settings that differ, and of components that are started in another way, or were not there."""
    old, new = _flat(previous.config), _flat(wanted.config)
    changed = sorted(name for name in old | new if old.get(name) != new.get(name))
    tags = {component.name: component.tag for component in previous.components}
    again = [component.name for component in wanted.components if tags.get(component.name) != component.tag]
    return tuple(changed), tuple(again)


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Settings by their dotted names."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= _flat(value, f"{before}{name}.") if isinstance(value, Mapping) else {before + name: value}
    return found


def check_listen(host: str) -> None:
    """InvalidArgument when nothing on this machine can listen there, before anything is started."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(address)
    except OSError as error:
        away = error.errno == errno.EADDRNOTAVAIL
        reason = "is not an address of this machine" if away else f"cannot be listened on: {error.strerror or error}"
        raise InvalidArgument(
            f"{host} {reason}", reason="LISTEN", violations=[Violation("listen", f"{host} {reason}")]
        ) from None


def _check_external(config: MeshConfig) -> None:
    """Servers that the mesh does not start itself must answer before anything is started."""
    database = config.database.url.get_secret_value() if config.database.url else ""
    lists = {"NATS": config.nats.url.split(","), "Valkey": [config.valkey.url], "PostgreSQL": [database]}
    for what, urls in lists.items():
        silent = []
        for url in filter(None, (item.strip() for item in urls)):
            host, port = _address(what, url)
            try:
                socket.create_connection((host, port), 5.0).close()
                break  # one of a cluster is enough
            except OSError as error:
                silent.append(f"{what} at {host}:{port} cannot be reached: {error}")
        else:
            if silent:
                raise Unavailable("; ".join(silent), reason="EXTERNAL")


def _address(what: str, url: str) -> tuple[str, int]:
    """Host and port of a URL; its other parts may hold a password, and are in no message."""
    with contextlib.suppress(ValueError):
        parts = urlsplit(url if "://" in url else f"//{url}")
        if parts.hostname:
            return parts.hostname, parts.port or _DEFAULT_PORTS[what]
    raise InvalidArgument(f"the URL of {what} has no valid host and port", reason="EXTERNAL")


def _ports(home: Home, config: MeshConfig, options: UpOptions, living: set[str]) -> dict[str, int]:
    """Ports for all addresses; those of processes that are not alive must be free."""
    names = options.table.address_names(config)
    fixed = config.ports.fixed()
    if unknown := sorted(set(fixed) - set(names)):
        raise InvalidArgument(f"[ports] names what is not started here: {', '.join(unknown)}")
    kept = {name: port for name, port in state.load(home.mesh_file).ports.items() if name in names}
    for name in names:
        port = fixed.get(name, kept.get(name))
        host = config.listen if name.startswith("gateway.") else "127.0.0.1"
        if port is None or name.partition(".")[0] in living or ports.is_free(host, port):
            continue
        if name in fixed:
            raise ports.taken(name, port, home.config_file)
        del kept[name]  # somebody took it meanwhile, and nothing of ours lives there: choose another
    return ports.choose(names, fixed=fixed, kept=kept, seed=str(home.root))


def _launch_supervisor(home: Home, env: Mapping[str, str]) -> ProcessHandle:
    mesh = state.load(home.mesh_file)
    mesh.round = ""  # what a dead supervisor wrote is not to be believed
    mesh.save(home.mesh_file)
    module = "recmesh.cli.mesh.supervisor"
    command = [sys.executable, "-m", module, "--home", str(home.root)]
    return launch(
        stop.SUPERVISOR, command, run_dir=home.run, log_path=home.log(stop.SUPERVISOR),
        env={key: value for key, value in env.items() if not key.startswith("RECMESH_")},
    )  # fmt: skip


def _wait(
    home: Home,
    keeper: ProcessHandle,
    wanted: Round,
    deadline: float,
    on_progress: Callable[[state.MeshState], None],
) -> state.MeshState:
    while True:
        mesh = state.load(home.mesh_file)
        if mesh.round == wanted.id:
            on_progress(mesh)
            if mesh.error:
                raise FailedPrecondition(mesh.error)
            if mesh.ready:
                return mesh
            for name, item in mesh.components.items():
                if item.hopeless:
                    raise Unavailable(
                        f"{name} does not start: {item.last_exit}{_last_words(home.log(name))}",
                        reason="NOT_STARTING",
                    )
        ended = keeper.exit()
        if ended is not None:
            raise Unavailable(
                f"the supervisor ended: {ended.reason}{_last_words(home.log(stop.SUPERVISOR))}",
                reason="NOT_STARTING",
            )
        if time.monotonic() >= deadline:
            late = [f"{name} ({c.state})" for name, c in mesh.components.items() if c.state != "ready"]
            who = ", ".join(late) or "the supervisor"
            raise DeadlineExceeded(f"not ready in time: {who}; see {home.logs}")
        time.sleep(_POLL_S)


def _last_words(path: Path) -> str:
    """The last line that a process logged, and where to read more."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 65536))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    last = _message(lines[-1]) if lines else ""
    return f": {last[:500]}\n  (log: {path})" if last else f"\n  (log: {path})"


def _message(line: str) -> str:
    """What a log line says, whether it is JSON or text."""
    try:
        value: Any = json.loads(line)
    except ValueError:
        return line
    if not isinstance(value, dict):
        return line
    parts = [str(value[name]) for name in ("message", "error") if value.get(name)]   # what failed, and why
    return ": ".join(parts) or line
