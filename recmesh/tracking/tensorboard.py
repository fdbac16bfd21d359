"""Event files that TensorBoard shows: `DIR/JOB`, one file for each process that wrote them."""

import sys
from pathlib import Path
from types import ModuleType

# TensorBoard imports TensorFlow where it is installed, for ten seconds and half a gigabyte, unless this module is
# there: its own build without TensorFlow has it (tensorboard/compat/__init__.py).
sys.modules.setdefault("tensorboard.compat.notf", ModuleType("notf"))

from tensorboard.summary import Writer  # noqa: E402  # after the line above

from recmesh.tracking import Report  # noqa: E402

MAX_OPEN = 1024


class TensorBoard:
    """Steps are samples trained. A rollback shows as steps that go back, as they did."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._writers: dict[tuple[str, float], Writer] = {}

    def write(self, report: Report) -> None:
        """Flushed at each report: TensorBoard shows a job while it trains."""
        key = (report.job_id, report.created)
        writer = self._writers.pop(key, None)
        if writer is None:
            if len(self._writers) >= MAX_OPEN:
                self._writers.pop(next(iter(self._writers))).close()
            writer = Writer(str(self._root / report.job_id))
        self._writers[key] = writer             # the least recently written is first
        for name, value in report.metrics.items():
            writer.add_scalar(name, value, report.step, wall_time=report.at)
        writer.flush()
        if report.ended:
            self._writers.pop(key).close()

    def close(self) -> None:
        """All files."""
        while self._writers:
            self._writers.popitem()[1].close()
