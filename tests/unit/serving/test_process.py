"""What CN and HN processes have in common."""

import subprocess
import sys

SETTLED = """
import gc, sys
from recmesh.serving import process
before = len(gc.get_objects())
process.settle()
print(gc.get_freeze_count() >= before // 2 > 0, sys.getswitchinterval() == process.SWITCH_S < 0.005)
"""


def test_a_settled_process_collects_what_came_later_alone_and_switches_threads_soon() -> None:
    """In a process of its own, as both are of the whole process."""
    done = subprocess.run([sys.executable, "-c", SETTLED], capture_output=True, text=True, check=True, timeout=120.0)
    assert done.stdout.split() == ["True", "True"]
