"""Series of rates. All calls block, but for those of `Grouped`; the app runs them in threads."""

from services.forecaster.store.coarsening import coarsen
from services.forecaster.store.grouped import Grouped
from services.forecaster.store.promises import Promises
from services.forecaster.store.recent import Recent
from services.forecaster.store.sql import Observation, SqlStore

__all__ = ["Grouped", "Observation", "Promises", "Recent", "SqlStore", "coarsen"]
