"""The config DB: histories, plans, profiles. All calls block; the app runs them in threads."""

from services.brain.store.sql import SqlStore

__all__ = ["SqlStore"]
