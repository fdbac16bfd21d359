"""Training at a set speed, so that the cores of one machine are not what limits a job of many workers."""

import time
from collections.abc import Iterator
from typing import Any

from recmesh.trainer.session import Step


class Paced:
    """A session whose steps take their time: `per_s` samples a second, whatever the model takes beside."""

    def __init__(self, session: Any, per_s: float) -> None:
        self._session, self._per_s = session, per_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def steps(self) -> Iterator[Step]:
        due = 0.0
        for step in self._session.steps():
            time.sleep(max(0.0, due - time.monotonic()))
            due = max(due, time.monotonic() - 0.5) + step.batch.size / self._per_s
            yield step
