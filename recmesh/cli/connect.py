"""A client for the verbs: the mesh that is meant, with the key that its owner may read in its folder."""

import os
from contextvars import ContextVar
from typing import TYPE_CHECKING

import typer

from recmesh.cli.options import home_of

if TYPE_CHECKING:
    from recmesh.client import Client

TYPED_CA_FILE: ContextVar[str] = ContextVar("ca_file", default="")
"""Of `recmesh --ca-file`: goes before a context's, as $RECMESH_CA_FILE does not."""


def connect(home: str | None, *, timeout_s: float = 30.0) -> "Client":
    """As `Client.find` finds it, with --home before all else; Unavailable when there is none."""
    from recmesh.client import Client
    from recmesh.client.find import meant

    env = dict(os.environ)
    place = meant(home, env)
    if place.home and not env.get("RECMESH_API_KEY"):
        from recmesh.cli.mesh import rounds

        last = rounds.load(home_of(place.home))
        env["RECMESH_API_KEY"] = last.gateway_key if last else ""
    return Client.find(
        home=home, env=env, timeout_s=timeout_s, ca_file=TYPED_CA_FILE.get(),
        waiting=lambda what: typer.echo(what, err=True),
    )
