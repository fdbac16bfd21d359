"""The disk of the data folder while a mesh runs, pure: is it full, and must NATS start again after it was."""

from dataclasses import dataclass

BETWEEN_RESTARTS_S = 30.0


@dataclass(slots=True)
class DiskWatch:
    """What is remembered of it."""

    full: str = ""
    """Why nothing can be written now, or ''."""
    was_full: bool = False
    """Since NATS started last: its streams with a failed write take no other one until it starts again."""
    restarted_at: float = float("-inf")

    def saw(self, objection: str, now: float) -> bool:
        """True when there is room again and NATS shall start again."""
        self.full = objection
        if objection:
            self.was_full = True
            return False
        if not self.was_full or now - self.restarted_at < BETWEEN_RESTARTS_S:
            return False
        self.was_full, self.restarted_at = False, now
        return True
