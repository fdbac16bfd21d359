"""A nats-server for benchmarks."""

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from recmesh.cli.mesh.ports import is_free
from recmesh.cli.mesh.servers import nats_binary


@contextlib.contextmanager
def nats_server(folder: Path, *, synced: bool) -> Iterator[str]:
    """Its URL; data in `folder`, which is made. `synced`: each message before it is answered."""
    folder.mkdir()
    port = next(port for port in range(18_000 + os.getpid() % 1000, 19_999) if is_free("127.0.0.1", port))
    config = folder / "nats.conf"
    sync = ", sync_interval: always" if synced else ""
    config.write_text(f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{folder}"{sync} }}\n')
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([str(nats_binary()), "-c", str(config)], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 30
        while is_free("127.0.0.1", port):
            if time.monotonic() > deadline or process.poll() is not None:
                raise RuntimeError((folder / "log").read_text()[-2000:])
            time.sleep(0.05)
        yield f"nats://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)
