"""`python -m bench.peers.saving JSON`: torch.save of as many bytes as a snapshot has, as training code calls it."""

import json
import os
import sys
import time
from pathlib import Path

import torch


def main(task: dict[str, object]) -> int:
    """Prints the seconds of torch.save into the folder, and those of the fsync behind it."""
    rows, dim = int(str(task["rows"])), int(str(task["dim"]))
    state = {"ids": torch.arange(rows), "values": torch.ones(rows, dim), "state": torch.ones(rows, dim)}
    path = Path(str(task["path"]))
    began = time.perf_counter()
    torch.save(state, path)
    saved = time.perf_counter()
    with path.open("rb+") as file:
        os.fsync(file.fileno())
    print(json.dumps({"save_s": saved - began, "fsync_s": time.perf_counter() - saved,
                      "size_bytes": path.stat().st_size}))
    path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
