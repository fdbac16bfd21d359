"""`python -m recmesh.trainer.forkserver FD`: imports what roles need, then forks one for each order that comes.

A role is here within milliseconds instead of a second of CPU, which thirty at once wait for. Frameworks are left to
those that use them.
"""

import importlib
import os
import sys
from contextlib import suppress

from recmesh.trainer.__main__ import main

ROLES = ("start", "worker.role", "ps.role", "executor.role")


def run(descriptor: int) -> int:
    """Serves; in each child the role's exit code."""
    for name in ROLES:
        importlib.import_module(f"recmesh.trainer.{name}")
    from recmesh.runtime.process.forkserver import serve
    from recmesh.trainer.lean import keep_pandas_out

    keep_pandas_out()
    serve(descriptor)
    with suppress(OSError), open("/proc/self/comm", "w") as comm:
        comm.write(f"{os.environ.get('RECMESH_ROLE')}-{os.environ.get('RECMESH_ROLE_INDEX', '0')}")
    return main()


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1])))
