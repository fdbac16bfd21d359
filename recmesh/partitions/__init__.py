"""Topics of ordered partitions: their names, which partition a key belongs to, and their streams in JetStream.

In JetStream a partition is a stream of its own with one subject: `clicks-0` keeps `clicks.0`. So each has one order,
and the sequences of the server are positions without gaps.
"""

from recmesh.partitions.hashing import fnv1a32, partitions_of
from recmesh.partitions.naming import EVENT_TIME, series_of, stream_of, subject_of, topic_name
from recmesh.partitions.streams import Limits, count_of, ensure
from recmesh.partitions.times import told_moment, unit_of, unix_seconds

__all__ = [
    "EVENT_TIME", "Limits", "count_of", "ensure", "fnv1a32", "partitions_of", "series_of", "stream_of", "subject_of",
    "told_moment", "topic_name", "unit_of", "unix_seconds",
]
