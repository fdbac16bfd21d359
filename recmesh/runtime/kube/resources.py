"""Kinds of objects, and where each lies in the API (kubernetes.io/docs/reference/using-api/api-concepts)."""

from dataclasses import dataclass
from urllib.parse import quote

RECMESH_GROUP = "recmesh.dev"
RECMESH_VERSION = "v1alpha1"


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object."""

    group: str
    """Empty: the core group."""
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """`apps/v1`, as objects have it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Of one object, or of all in the namespace; empty namespace: of all namespaces."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        parts += [quote(part, safe="") for part in (name, subresource) if part]
        return "/" + "/".join(parts)


def recmesh_resource(plural: str, kind: str) -> Resource:
    """A kind of recmesh's own group."""
    return Resource(RECMESH_GROUP, RECMESH_VERSION, plural, kind)


PODS = Resource("", "v1", "pods", "Pod")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
SECRETS = Resource("", "v1", "secrets", "Secret")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
EVENTS = Resource("events.k8s.io", "v1", "events", "Event")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
