"""Series of rates. All calls block; the app runs them in threads."""

from services.forecaster.store.sql import SqlStore

__all__ = ["SqlStore"]
