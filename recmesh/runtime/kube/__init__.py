"""Kubernetes' API for asyncio services: a thin layer over the official client (package `kubernetes`).

Objects are plain JSON, as the server sends them. Every call has a deadline, passes one token bucket, is counted, and
fails with an error of recmesh.runtime.errors that has the server's own words.
"""

from recmesh.runtime.kube.access import Access, connect
from recmesh.runtime.kube.client import KubeClient, Object
from recmesh.runtime.kube.resources import (
    CONFIG_MAPS,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    SECRETS,
    Resource,
    recmesh_resource,
)
from recmesh.runtime.kube.watching import Change, Listing, follow

__all__ = [
    "CONFIG_MAPS", "EVENTS", "LEASES", "NAMESPACES", "NODES", "PODS", "SECRETS", "Access", "Change", "KubeClient",
    "Listing", "Object", "Resource", "connect", "follow", "recmesh_resource",
]
