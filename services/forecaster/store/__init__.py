"""Series of rates. All calls block; the app runs them in threads."""

from services.forecaster.store.sql import SeriesInfo, SqlStore

__all__ = ["SeriesInfo", "SqlStore"]
