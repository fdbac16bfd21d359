"""Rates over SQLAlchemy: SQLite or PostgreSQL. A series is a name and a step."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, delete, desc, func, select
from sqlalchemy.dialects import postgresql, sqlite

from recmesh.runtime.errors import ResourceExhausted
from recmesh.runtime.sql import migrate, open_engine, reading, writing
from services.forecaster.domain.series import Point, SeriesInfo
from services.forecaster.store.tables import VERSION_TABLE, rates, series

REVISIONS = Path(__file__).parent / "revisions"


class SqlStore:
    """Every method is one transaction, durable when it returns."""

    def __init__(self, url: str, *, max_series: int = 10_000) -> None:
        self.engine: Engine = open_engine(url, what="forecaster")
        self._max_series = max_series

    def open(self) -> None:
        """Bring the schema up to date."""
        migrate(self.engine, revisions=REVISIONS, version_table=VERSION_TABLE)

    def ping(self) -> None:
        """Returns when the database answers; Unavailable otherwise."""
        with reading(self.engine) as connection:
            connection.execute(select(1))

    def close(self) -> None:
        """Let go of all connections."""
        self.engine.dispose()

    def put(self, name: str, step_s: float, points: Sequence[Point]) -> int:
        """Store points; one for the same series, step and moment replaces the old one. Returns how many."""
        if not points:
            return 0
        with writing(self.engine) as connection:
            series_id = self._series_id(connection, name, step_s)
            statement = self._dialect.insert(rates)
            connection.execute(
                statement.on_conflict_do_update(
                    index_elements=["series_id", "at"], set_={"value": statement.excluded["value"]}
                ),
                [{"series_id": series_id, "at": point.at, "value": point.value} for point in points],
            )
        return len(points)

    def _series_id(self, connection: Connection, name: str, step_s: float) -> int:
        find = select(series.c.id).where((series.c.name == name) & (series.c.step_s == step_s))
        found = connection.execute(find).scalar()
        if found is None:
            if (connection.execute(select(func.count()).select_from(series)).scalar() or 0) >= self._max_series:
                raise ResourceExhausted(
                    f"{self._max_series} series are stored; {name!r} would be one more",
                    reason="TOO_MANY_SERIES",
                )
            insert = self._dialect.insert(series).values(name=name, step_s=step_s).on_conflict_do_nothing()
            connection.execute(insert)
            found = connection.execute(find).scalar_one()
        return int(found)

    def points(
        self, name: str, step_s: float, *, since: float = 0.0, until: float = 0.0, limit: int = 100_000
    ) -> list[Point]:
        """The newest `limit` values in [since, until), oldest first; `until` 0 is no bound."""
        query = (
            select(rates.c.at, rates.c.value).join(series, series.c.id == rates.c.series_id)
            .where((series.c.name == name) & (series.c.step_s == step_s) & (rates.c.at >= since))
            .order_by(desc(rates.c.at)).limit(limit)
        )  # fmt: skip
        if until:
            query = query.where(rates.c.at < until)
        with reading(self.engine) as connection:
            found = [Point(float(at), float(value)) for at, value in connection.execute(query)]
        return found[::-1]

    def steps(self, name: str) -> list[float]:
        """The steps that a series is known at, finest first; none when it is unknown."""
        with reading(self.engine) as connection:
            query = select(series.c.step_s).where(series.c.name == name).order_by(series.c.step_s)
            return [float(step_s) for (step_s,) in connection.execute(query)]

    def names(self) -> list[str]:
        """All series, for telling what was probably meant."""
        with reading(self.engine) as connection:
            query = select(series.c.name).distinct().order_by(series.c.name)
            return [str(name) for (name,) in connection.execute(query)]

    def info(self, *, prefix: str = "", limit: int = 100) -> list[SeriesInfo]:
        """What is stored, by name and step."""
        counted = (
            select(
                rates.c.series_id, func.count().label("points"), func.min(rates.c.at).label("first"),
                func.max(rates.c.at).label("last"),
            ).group_by(rates.c.series_id).subquery()
        )  # fmt: skip
        wanted = (series.c.name, series.c.step_s, counted.c.points, counted.c.first, counted.c.last)
        query = (
            select(*wanted, rates.c.value)
            .join(counted, counted.c.series_id == series.c.id)
            .join(rates, (rates.c.series_id == series.c.id) & (rates.c.at == counted.c.last))
            .where(series.c.name.startswith(prefix, autoescape=True))
            .order_by(series.c.name, series.c.step_s).limit(limit)
        )  # fmt: skip
        with reading(self.engine) as connection:
            return [SeriesInfo(*row) for row in connection.execute(query)]

    def forget(self, *, before: float, points_per_series: int) -> int:
        """Remove values older than `before`, all but the newest of each series, and series without any."""
        place = func.row_number().over(partition_by=rates.c.series_id, order_by=desc(rates.c.at)).label("place")
        newest = select(rates.c.series_id, rates.c.at, place).subquery()
        with writing(self.engine) as connection:
            removed = connection.execute(delete(rates).where(rates.c.at < before)).rowcount
            found = select(newest.c.series_id, newest.c.at).where(newest.c.place == points_per_series + 1)
            for series_id, at in connection.execute(found).all():
                where = (rates.c.series_id == series_id) & (rates.c.at <= at)
                removed += connection.execute(delete(rates).where(where)).rowcount
            connection.execute(delete(series).where(series.c.id.not_in(select(rates.c.series_id))))
        return removed

    @property
    def _dialect(self) -> Any:
        return postgresql if self.engine.dialect.name == "postgresql" else sqlite
