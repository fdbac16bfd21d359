"""A mesh whose processes may be harmed: in a folder of its own, with short times of silence, gone at the end."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from recmesh.chaos.front import Front
from recmesh.chaos.proxy import Proxy, Script
from recmesh.chaos.rival import Rival
from recmesh.chaos.run import Mesh
from recmesh.cli.mesh import ports, rounds, state, stop
from recmesh.cli.mesh.home import Home
from recmesh.cli.mesh.start import UpOptions, up
from recmesh.client.rest import Client
from recmesh.runtime.gates import FOLDER
from recmesh.runtime.process import ProcessHandle, launch
from recmesh.runtime.rpc.detour import PROXY
from recmesh.trainer.breaking import VARIABLE, check_rule

JOBMASTER = "RECMESH_JOBMASTER_RPC"
"""Where services and roles find jobmaster: at the front, behind which there may be two."""
QUICK_TO_NOTICE = {
    "RECMESH_SILENCE_S": "8", "RECMESH_WARM_UP_S": "25", "RECMESH_START_GRACE_S": "60", "RECMESH_LEASE_TTL_S": "3",
    "RECMESH_LEADER_TTL_S": "2", "RECMESH_RETRY_CEILING_S": "2",
}
"""So that what is stopped for seconds is taken for dead, and a start on a busy machine is not."""


@contextmanager
def chaos_mesh(*, seed: int, broken: str = "", timeout_s: float = 180.0, keep: bool = False) -> Iterator[Mesh]:
    """Up on entry, down and forgotten on exit, whatever happened; `keep` leaves the folder for a look at it.

    `broken` names a rule that its roles shall lack.
    """
    check_rule(broken, field="--break")
    proxy, front = Proxy(Script(), seed=seed), Front()
    root = Path(tempfile.mkdtemp(prefix="recmesh-chaos-"))
    home = Home(root / "mesh")
    try:
        home.root.mkdir(mode=0o700)
        gates = root / "gates"
        gates.mkdir()
        env = {FOLDER: str(gates), PROXY: proxy.start(), JOBMASTER: front.start(), **QUICK_TO_NOTICE}
        env |= {VARIABLE: broken} if broken else {}
        lines = [f"{name} = {json.dumps(value)}" for name, value in env.items()]
        home.config_file.write_text("\n".join(["restart_delay_s = 2.0", "[env]", *lines, ""]))
        started = up(home, os.environ, UpOptions(timeout_s=timeout_s)).mesh
        first = started.components["jobmaster"].addresses["rpc"]
        front.point_at(first)
        with Client.find(home=home.root, env={}) as client:
            yield Mesh(
                client=client, folder=root, run_dir=home.run,
                ports={name: started.ports[name] for name in ("nats", "valkey")},
                nats_url=f"nats://127.0.0.1:{started.ports['nats']}", nats_token=home.secrets()["nats"],
                is_ready=lambda name: _is_ready(home, name), proxy=proxy,
                rival=Rival(lambda: _second_jobmaster(home), front, first=first), valkey=home.root / "valkey",
            )
    finally:
        stop.down(home)
        proxy.stop()
        front.stop()
        if not keep:
            shutil.rmtree(root, ignore_errors=True)


def _second_jobmaster(home: Home) -> tuple[ProcessHandle, str]:
    """Started as the supervisor starts the first, but where it listens; with the address of its calls."""
    asked = rounds.load(home)
    assert asked is not None, "the mesh is up"
    component = next(item for item in asked.components if item.name == "jobmaster")
    chosen = ports.choose(("rpc", "http"), fixed={}, kept={}, seed=f"{home.root} rival")
    rpc, http = (f"127.0.0.1:{chosen[name]}" for name in ("rpc", "http"))
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RECMESH_")}
    env = clean | dict(component.env) | {"RECMESH_RPC_ADDRESS": rpc, "RECMESH_HTTP_ADDRESS": http}
    handle = launch(
        "jobmaster-2", component.command, run_dir=home.run / "rival", log_path=home.log("jobmaster-2"), env=env,
        cwd=Path(component.cwd) if component.cwd else None,
    )
    return handle, rpc


def _is_ready(home: Home, name: str) -> bool:
    component = state.load(home.mesh_file).components.get(name)
    return component is not None and component.state == "ready"
