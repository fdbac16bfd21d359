"""`python -m bench.peers.flash JSON`: DLRover's flash checkpoint of as many bytes as a snapshot has.

Its pause is the call: a copy into shared memory. A process of its own writes that to disk afterwards. The first save
makes the shared memory, so it is reported apart.
"""

import importlib.metadata
import json
import os
import shutil
import sys
import time
from pathlib import Path

PATIENCE_S = 600.0
SAVES = 4
SOCKETS = Path("/tmp/ckpt_sock")


def main(task: dict[str, object]) -> int:
    """Prints the seconds of the first save and of later ones, and those until the last save is on disk."""
    folder = Path(str(task["folder"]))
    os.environ["TORCHELASTIC_RUN_ID"] = folder.name      # names its shared memory and sockets
    os.environ["DLROVER_LOG_LEVEL"] = "ERROR"
    import torch
    from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer, StorageType

    rows, dim = int(str(task["rows"])), int(str(task["dim"]))
    state = {"ids": torch.arange(rows), "values": torch.ones(rows, dim), "state": torch.ones(rows, dim)}
    saver = DdpCheckpointer(str(folder))
    pauses, stored_s, size_bytes = [], 0.0, 0
    try:
        for step in range(1, SAVES + 1):
            path = folder / f"{step}.pt"
            began = time.perf_counter()
            saver.save_checkpoint(step, state, str(path), storage_type=StorageType.DISK)
            pauses.append(time.perf_counter() - began)
            _wait(folder / "dlrover_latest.txt", str(step))
            stored_s = time.perf_counter() - began
            size_bytes = path.stat().st_size
            path.unlink()
    finally:
        saver._engine._shm_handler.unlink()              # it and the sockets would stay after the process
        shutil.rmtree(SOCKETS / folder.name, ignore_errors=True)
    print(json.dumps({"first_s": pauses[0], "pauses_s": pauses[1:], "stored_s": stored_s, "size_bytes": size_bytes,
                      "version": importlib.metadata.version("dlrover")}))
    return 0


def _wait(path: Path, content: str) -> None:
    """DLRover's own wait looks every 3 s, and fails before the first checkpoint is there."""
    deadline = time.monotonic() + PATIENCE_S
    while not (path.exists() and path.read_text() == content):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} does not say {content} after {PATIENCE_S:g} s")
        time.sleep(0.005)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
