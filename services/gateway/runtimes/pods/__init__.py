"""CN and HN processes as pods of Kubernetes."""

from services.gateway.runtimes.pods.objects import PodSettings
from services.gateway.runtimes.pods.serving import ServingPods

__all__ = ["PodSettings", "ServingPods"]
