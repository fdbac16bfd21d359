"""What the use cases work with; composed once, in __main__ (and by tests)."""

import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import Violation
from recmesh.spec.job import TrainingJob
from services.jobmaster.cluster import Controller
from services.jobmaster.domain.limits import Limits
from services.jobmaster.peers import Peers
from services.jobmaster.store import JobStore


@dataclass(frozen=True, slots=True)
class Addresses:
    """What a role's process is told to call."""

    jobmaster: Callable[[], str]
    """Known when the server listens."""
    shardsvc: str
    ckptcache: str


@dataclass(frozen=True, slots=True)
class Context:
    """Ports and settings."""

    store: JobStore
    peers: Peers
    cluster: Controller
    clock: Clock
    rng: random.Random
    publish: Callable[[Any], Awaitable[None]]
    """Sends an event to the bus; returns when it is stored there."""
    addresses: Addresses
    storage_uri: str
    limits: Limits = field(default_factory=Limits)
    role_env: Mapping[str, str] = field(default_factory=dict)
    """Environment of every role's process, tokens included."""
    topics_env: Mapping[str, str] = field(default_factory=dict)
    """What processes that read topics have in addition: variables that `servers` and `options` may name."""
    mesh_topics_env: Mapping[str, str] = field(default_factory=dict)
    """What those have that read topics of the mesh's own NATS."""
    may_write: Callable[[str], None] = lambda job_id: None
    """Raises for jobs whose lease this jobmaster has lost; asked before what is written beside store and cluster."""
    namespace: str = ""
    """The mesh's own, where jobs are objects of Kubernetes: names of what is its own have no namespace before them."""
    lease_ttl_s: float = 30.0
    untracked: Callable[[TrainingJob], list[Violation]] = lambda spec: []
    """Why metrics of a job cannot go where it asks."""
    max_live_jobs: int = 1000
