"""Threads that nobody waits for leave the processor to those that somebody does."""

import os
import threading


def step_back(nice: int) -> None:
    """The calling thread has at least this niceness: on Linux each has its own, which those that it starts inherit.

    One that is nicer already, as in a mesh that was started by `nice`, stays as it is: to come back is refused to
    processes without the right to it.
    """
    thread = threading.get_native_id()
    if os.getpriority(os.PRIO_PROCESS, thread) < nice:
        os.setpriority(os.PRIO_PROCESS, thread, nice)
