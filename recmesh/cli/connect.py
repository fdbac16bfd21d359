"""A client for the verbs: the mesh of the data folder, with the key that its owner may read there."""

import os
from typing import TYPE_CHECKING

from recmesh.cli.options import home_of

if TYPE_CHECKING:
    from recmesh.client import Client


def connect(home: str | None) -> "Client":
    """The mesh meant by --home, $RECMESH_URL, $RECMESH_HOME or `.recmesh`; Unavailable when there is none."""
    from recmesh.client import Client

    env = dict(os.environ)
    if "RECMESH_API_KEY" not in env and ("RECMESH_URL" not in env or home):
        from recmesh.cli.mesh import rounds

        last = rounds.load(home_of(home))
        key = last.config.get("api_key") if last else None
        if key:
            env["RECMESH_API_KEY"] = str(key)
    return Client.find(home=home, env=env)
