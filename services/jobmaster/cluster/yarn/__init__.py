"""Role processes in YARN's containers: one service for each job, a component for each role.

    service.py      the service of a job, its components, their sizes
    reading.py      what a node and a container's own note tell of an end
    known.py        all that is known of instances
    room.py         what nodes have free
    following.py    looks again and again: counts that are not right yet, what has begun, what has ended
    controller.py   what is asked of a controller
"""

from services.jobmaster.cluster.yarn.controller import YarnController
from services.jobmaster.cluster.yarn.service import YarnSettings

__all__ = ["YarnController", "YarnSettings"]
