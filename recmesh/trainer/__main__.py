"""`python -m recmesh.trainer`: one role of one job, told by its environment.

RECMESH_ROLE (ps | worker | data | evaluator | finisher), RECMESH_ROLE_INDEX, RECMESH_JOB_ID, RECMESH_JOBMASTER
(gRPC address), RECMESH_TOKEN, RECMESH_WORK_DIR, RECMESH_LOG_LEVEL. Exit codes: 0 done or drained, 64 the
user's mistake, 70 a bug, 75 another process may do better.
"""

import gc
import os
import sys

# Before numpy, numba and the frameworks are loaded: a role has few cores, and its threads share them.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
# Arrow's own allocator gives freed memory back; malloc is told to keep it (see recmesh.trainer.memory).
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")


def main() -> int:
    """Dispatches; each role loads only what it needs."""
    from recmesh.trainer.kernels import unpack_kernels

    unpack_kernels(os.environ)      # before anything imports numba
    from recmesh.runtime import gates
    from recmesh.trainer.memory import keep_freed_memory

    keep_freed_memory()
    gates.install(os.environ, who=f"{os.environ.get('RECMESH_ROLE')}-{os.environ.get('RECMESH_ROLE_INDEX', '0')}")
    try:
        if os.environ.get("RECMESH_ROLE") == "ps":
            from recmesh.trainer.ps.role import main as run_ps

            return run_ps(os.environ)
        from recmesh.trainer.start import run

        return run(os.environ)
    finally:
        # The interpreter would look for cycles among a framework's million objects, for seconds, in a process
        # that others wait for: these are no candidates any more.
        gc.freeze()


if __name__ == "__main__":
    sys.exit(main())
