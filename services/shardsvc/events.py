"""Facts that shardsvc tells: run.opened, lease.requeued, dataset.registered, dataset.removed, topic.observed,
rates.observed.

It listens to none. None of them decides anything: the task log, the run and the queue do. So they are sent in the
background, and a bus that is away never holds up a lease.
"""

from collections.abc import Callable
from typing import Any

from recmesh.runtime.bus import Bus
from recmesh.runtime.events import Event


def teller(bus: Bus) -> Callable[[Event[Any]], bool]:
    """Sends an event in the background; False when the backlog was full and an older one was dropped."""
    return bus.offer
