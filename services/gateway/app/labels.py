"""Labels of samples that were predicted: checked, then stored in a topic that the label join reads."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from recmesh.partitions import topic_name
from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.serving.settings import is_own_subject
from services.gateway.domain.callers import MESH, Caller
from services.gateway.domain.predictions import Label, checked_labels

AHEAD_S = 300.0
"""By how much a clock of those who post may be ahead."""

StoreLabels = Callable[[str, Sequence[Label], float, bool], Awaitable[int]]
"""Topic, labels, the time of those without one, and whether the topic is made where there is none; how many of them
were stored before."""


class Labels:
    """Takes labels by REST and by event."""

    def __init__(self, store: StoreLabels, *, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def post(self, topic: str, entries: Sequence[Any], *, caller: Caller = MESH) -> int:
        """Store them; how many were stored before. All are, or an error says that some may not be: post them again.

        NotFound: there is no such topic, and the caller may only run models.
        """
        topic_name(topic, field="topic")
        if is_own_subject(topic):
            why = "would be among the mesh's own subjects"
            raise InvalidArgument(f"topic {topic} {why}", reason="BAD_LABELS", violations=[Violation("topic", why)])
        caller.check_topic(topic)
        now = self._clock.now()
        return await self._store(topic, checked_labels(entries, latest=now + AHEAD_S), now, caller.makes_topics)
