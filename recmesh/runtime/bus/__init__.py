"""NATS JetStream: events, key-value buckets, logs, and the micro protocol."""

from recmesh.runtime.bus.bus import Bus
from recmesh.runtime.bus.consumer import DEAD_STREAM, EVENT_STREAM, Consumer
from recmesh.runtime.bus.kv import Entry, KeyValue
from recmesh.runtime.bus.link import Link
from recmesh.runtime.bus.log import Log
from recmesh.runtime.bus.micro import MicroService
from recmesh.runtime.bus.publisher import Publisher
from recmesh.runtime.bus.pull import Place, follow

__all__ = [
    "DEAD_STREAM", "EVENT_STREAM", "Bus", "Consumer", "Entry", "KeyValue", "Link", "Log", "MicroService", "Place",
    "Publisher", "follow",
]
