"""Which mesh is meant: a folder on this machine, or an address with what it takes to speak to it."""

import json
from collections.abc import Mapping
from pathlib import Path

from recmesh.client.contexts import Context, Contexts
from recmesh.runtime.errors import Unavailable


def meant(home: Path | str | None, env: Mapping[str, str]) -> Context:
    """The first of: `home`; $RECMESH_URL; the context $RECMESH_CONTEXT; $RECMESH_HOME; `.recmesh` here, if a mesh was
    ever started in it; the current context; `.recmesh` here.

    NotFound for a context that there is not, InvalidArgument for a file of contexts that cannot be read.
    """
    if home:
        return Context(home=str(home))
    if env.get("RECMESH_URL"):
        return Context(url=env["RECMESH_URL"])
    if env.get("RECMESH_CONTEXT"):
        return Contexts.read(env).named(env["RECMESH_CONTEXT"])
    if env.get("RECMESH_HOME"):
        return Context(home=env["RECMESH_HOME"])
    if not Path(".recmesh/mesh.json").exists():
        known = Contexts.read(env)
        if known.current:
            return known.named(known.current)
    return Context(home=".recmesh")


def gateway_of(home: str) -> str:
    """Address of the gateway of a mesh on this machine; Unavailable when there is none, or it is stopped."""
    folder = Path(home).expanduser().absolute()
    try:
        mesh = json.loads((folder / "mesh.json").read_bytes())
        gateway = mesh["components"]["gateway"]
        running = gateway["state"] != "stopped"
        url = gateway["addresses"]["http"]
    except (OSError, ValueError, KeyError, TypeError):
        raise Unavailable(f"there is no mesh in {folder}: start one with `recmesh up`") from None
    if not running:
        raise Unavailable(f"the mesh in {folder} is stopped: start it with `recmesh up`")
    return str(url)
