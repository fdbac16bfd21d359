"""Processes on this machine that outlive whoever started them.

A process is started through a *shim* (`shim.py`): a tiny parent in a session of its own that waits for the
command and writes down how it ended. The starter may be killed, come back, and `find` its processes again
with the truth about those that ended meanwhile. A process is identified by its pid *and* its kernel start
time, so that a reused pid is never taken for it, let alone signalled.

    handle = launch("worker-0", [sys.executable, "-m", "recmesh.trainer"], run_dir=run, log_path=log)
    handle.alive(); handle.exit(); handle.terminate(grace_s=10); handle.usage()
    for handle in find(run): ...
"""

from recmesh.runtime.process.forkserver import ForkServer
from recmesh.runtime.process.identity import ProcessId
from recmesh.runtime.process.launcher import ProcessHandle, Usage, find, launch, terminate_all
from recmesh.runtime.process.records import ExitRecord, StartRecord

__all__ = [
    "ExitRecord",
    "ForkServer",
    "ProcessHandle",
    "ProcessId",
    "StartRecord",
    "Usage",
    "find",
    "launch",
    "terminate_all",
]
