"""Role processes as pods: one pod for each start order, watched as one.

    pods.py         the pod of an order, its Secret
    reading.py      what a pod tells: its end, what it waits for, its limits
    known.py        all that is known of pods
    room.py         what nodes have free
    controller.py   calls
"""

from services.jobmaster.cluster.kubernetes.controller import KubernetesController
from services.jobmaster.cluster.kubernetes.pods import PodSettings

__all__ = ["KubernetesController", "PodSettings"]
