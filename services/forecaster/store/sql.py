"""Rates over SQLAlchemy: SQLite or PostgreSQL. A series is a name and a step."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Integer,
    Select,
    Table,
    cast,
    delete,
    desc,
    func,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from recmesh.runtime.errors import ResourceExhausted
from recmesh.runtime.sql import migrate, open_engine, reading, writing
from services.forecaster.domain.series import MAX_STEP_S, Covered, Point, SeriesInfo
from services.forecaster.domain.tiers import Rows, Stored, on_step
from services.forecaster.store.tables import VERSION_TABLE, coarse, rates, series

REVISIONS = Path(__file__).parent / "revisions"
CHUNK = 5_000
"""Rows of one transaction that forgets; names of one question."""
COVER_S, COVER_SPAN_S = 21 * 86_400.0, 4 * 3600.0
"""How far back it is told what is measured, and in which spans."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Rates of one series."""

    series: str
    step_s: float
    points: Sequence[Point]


class SqlStore:
    """Every method is one transaction unless it says otherwise, durable when it returns."""

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
        """As `put_many`, of one series; ResourceExhausted when it would be one too many."""
        (stored,) = self.put_many([Observation(name, step_s, points)])
        if isinstance(stored, ResourceExhausted):
            raise stored
        return stored

    def put_many(self, observations: Sequence[Observation]) -> list[int | ResourceExhausted]:
        """Store points; one for the same series, step and moment replaces the old one.

        Returns how many of each observation were stored, or why its series was refused; the others are stored all the
        same. A point of a time that is kept as a mean already is passed over: it came too late.
        """
        told: list[int | ResourceExhausted] = []
        rows: dict[tuple[int, float], dict[str, float]] = {}
        with writing(self.engine) as connection:
            ids = self._series_ids(connection, {(each.series, each.step_s) for each in observations if each.points})
            known = [found for found in ids.values() if isinstance(found, int)]
            connection.execute(select(series.c.id).where(series.c.id.in_(known)).order_by(series.c.id).with_for_update())
            until = self._coarse_until(connection, known)
            for each in observations:
                found = ids.get((each.series, each.step_s), 0)
                if isinstance(found, ResourceExhausted):
                    told.append(found)
                    continue
                points = each.points
                if any(point.at < until.get(found, 0.0) for point in points):
                    points = self._not_too_late(connection, found, each.step_s, points)
                for point in points:
                    rows[found, point.at] = {
                        "series_id": found, "at": point.at, "value": point.value, "step_s": each.step_s,
                    }
                told.append(len(points))
            if rows:
                statement = self.insert(rates)
                new = {name: statement.excluded[name] for name in ("value", "step_s", "steps")}
                connection.execute(
                    statement.on_conflict_do_update(index_elements=["series_id", "at"], set_=new), list(rows.values())
                )
        return told

    def _series_ids(
        self, connection: Connection, wanted: set[tuple[str, float]]
    ) -> dict[tuple[str, float], int | ResourceExhausted]:
        """Of known ones and of new ones, which are made as long as there is room."""
        found: dict[tuple[str, float], int | ResourceExhausted] = dict(self._known(connection, wanted))
        new = sorted(wanted - found.keys())
        if new:
            room = self._max_series - (connection.execute(select(func.count()).select_from(series)).scalar() or 0)
            made = [{"name": name, "step_s": step_s} for name, step_s in new[: max(0, room)]]
            if made:
                connection.execute(self.insert(series).on_conflict_do_nothing(), made)
                found.update(self._known(connection, set(new)))
            for name, step_s in new[max(0, room) :]:
                found.setdefault((name, step_s), ResourceExhausted(
                    f"{self._max_series} series are stored; {name!r} would be one more", reason="TOO_MANY_SERIES",
                ))
        return found

    def _known(self, connection: Connection, wanted: set[tuple[str, float]]) -> dict[tuple[str, float], int]:
        names = sorted({name for name, _ in wanted})
        found: dict[tuple[str, float], int] = {}
        for first in range(0, len(names), CHUNK):
            query = select(series.c.name, series.c.step_s, series.c.id).where(
                series.c.name.in_(names[first : first + CHUNK])
            )
            found.update({(name, float(step_s)): int(key) for name, step_s, key in connection.execute(query)})
        return {key: found[key] for key in wanted if key in found}

    def _coarse_until(self, connection: Connection, ids: Sequence[int]) -> dict[int, float]:
        query = select(coarse.c.series_id, func.max(coarse.c.until)).where(coarse.c.series_id.in_(ids))
        return {int(key): float(until) for key, until in connection.execute(query.group_by(coarse.c.series_id))}

    def _not_too_late(
        self, connection: Connection, series_id: int, own_step_s: float, points: Sequence[Point]
    ) -> list[Point]:
        """Those whose time is not kept as a mean; of older times what is left will be looked at again."""
        first, last = min(point.at for point in points), max(point.at for point in points)
        query = select(rates.c.at, rates.c.step_s).where(
            (rates.c.series_id == series_id) & (rates.c.step_s > own_step_s)
            & (rates.c.at <= last) & (rates.c.at > first - MAX_STEP_S) & (rates.c.at + rates.c.step_s > first)
        )  # fmt: skip
        means = [(float(at), float(at + step_s)) for at, step_s in connection.execute(query.order_by(rates.c.at))]
        kept, place = [], 0
        for point in sorted(points, key=lambda each: each.at):
            while place < len(means) and means[place][1] <= point.at:
                place += 1
            if place == len(means) or point.at < means[place][0]:
                kept.append(point)
        if kept:
            back = update(coarse).where((coarse.c.series_id == series_id) & (coarse.c.until > kept[0].at))
            connection.execute(back.values(until=kept[0].at))
        return kept

    def points(
        self, name: str, step_s: float, *, since: float = 0.0, until: float = 0.0, limit: int = 100_000,
        on: float = 0.0,
    ) -> list[Point]:
        """Values in [since, until) of the `limit` steps up to the newest one, oldest first; `until` 0 is no bound.

        They are on the step `on`, a multiple of the series' own, which it is without; what is kept as means of coarser
        steps holds for all steps in it.
        """
        grid_s = on or step_s
        rows = self.stored(name, step_s, since=since, until=until, limit=limit, within_s=limit * grid_s)
        found = [each for each in on_step(rows, grid_s) if each.at > since - grid_s and not 0 < until <= each.at]
        return found[-limit:]

    def rows(
        self, name: str, step_s: float, *, since: float = 0.0, until: float = 0.0, limit: int = 100_000,
        within_s: float = 0.0,
    ) -> Rows:
        """As `stored`, in columns: a tenth of its time."""
        with reading(self.engine) as connection:
            query = self._reaching(connection, name, step_s, since, until, limit, within_s)
            flat = itertools.chain.from_iterable(connection.execute(query))
            return Rows.of(np.fromiter(flat, np.float64).reshape(-1, 4)[::-1])

    def stored(
        self, name: str, step_s: float, *, since: float = 0.0, until: float = 0.0, limit: int = 100_000,
        within_s: float = 0.0,
    ) -> list[Stored]:
        """The newest `limit` rows that reach into [since, until), oldest first, each of its own step.

        `within_s`: only so much before the newest of them.
        """
        with reading(self.engine) as connection:
            query = self._reaching(connection, name, step_s, since, until, limit, within_s)
            found = [Stored(float(at), float(value), float(own), int(steps))
                     for at, value, own, steps in connection.execute(query)]
        return found[::-1]

    def _reaching(
        self, connection: Connection, name: str, step_s: float, since: float, until: float, limit: int, within_s: float
    ) -> Select[Any]:
        """Newest first."""
        query = (
            select(rates.c.at, rates.c.value, rates.c.step_s, rates.c.steps)
            .join(series, series.c.id == rates.c.series_id)
            .where((series.c.name == name) & (series.c.step_s == step_s))
            .order_by(desc(rates.c.at)).limit(limit)
        )  # fmt: skip
        if until:
            query = query.where(rates.c.at < until)
        if within_s:
            newest = connection.execute(query.limit(1)).first()
            if newest is not None:
                since = max(since, float(newest.at + newest.step_s) - within_s)
        if since > 0:
            query = query.where((rates.c.at > since - MAX_STEP_S) & (rates.c.at + rates.c.step_s > since))
        return query

    def steps(self, name: str) -> list[float]:
        """The steps that a series is known at, finest first; none when it is unknown."""
        with reading(self.engine) as connection:
            query = select(series.c.step_s).where(series.c.name == name).order_by(series.c.step_s)
            return [float(step_s) for (step_s,) in connection.execute(query)]

    def covered(self, name: str, *, until: float) -> list[Covered]:
        """What of the last weeks before `until`, and before the newest value of then, each step has values of."""
        mine = (series.c.name == name) & (rates.c.at < until)
        joined = rates.join(series, series.c.id == rates.c.series_id)
        with reading(self.engine) as connection:
            newest = connection.execute(select(func.max(rates.c.at)).select_from(joined).where(mine)).scalar()
            if newest is None:
                return []
            span = cast(rates.c.at / COVER_SPAN_S, Integer)
            query = (
                select(series.c.step_s, span, func.sum(rates.c.step_s)).select_from(joined)
                .where(mine & (rates.c.at > newest - COVER_S)).group_by(series.c.step_s, span)
            )  # fmt: skip
            return [Covered(float(step_s), (float(at) + 0.5) * COVER_SPAN_S, float(seconds))
                    for step_s, at, seconds in connection.execute(query)]

    def names(self) -> list[str]:
        """All series, for telling what was probably meant."""
        with reading(self.engine) as connection:
            query = select(series.c.name).distinct().order_by(series.c.name)
            return [str(name) for (name,) in connection.execute(query)]

    def info(self, *, prefix: str = "", limit: int = 100) -> list[SeriesInfo]:
        """What is stored, by name and step."""
        wanted = (
            select(series.c.id, series.c.name, series.c.step_s)
            .where(series.c.name.startswith(prefix, autoescape=True)
                   & select(rates.c.at).where(rates.c.series_id == series.c.id).exists())
            .order_by(series.c.name, series.c.step_s).limit(limit)
        ).subquery()  # fmt: skip
        counted = (
            select(
                rates.c.series_id, func.count().label("points"), func.min(rates.c.at).label("first"),
                func.max(rates.c.at).label("last"),
            ).join(wanted, wanted.c.id == rates.c.series_id).group_by(rates.c.series_id).subquery()
        )  # fmt: skip
        query = (
            select(wanted.c.name, wanted.c.step_s, counted.c.points, counted.c.first, counted.c.last, rates.c.value)
            .join(counted, counted.c.series_id == wanted.c.id)
            .join(rates, (rates.c.series_id == wanted.c.id) & (rates.c.at == counted.c.last))
            .order_by(wanted.c.name, wanted.c.step_s)
        )  # fmt: skip
        with reading(self.engine) as connection:
            return [SeriesInfo(*row) for row in connection.execute(query)]

    def forget(
        self, *, before: float, points_per_series: int, idle_before: float = 0.0, chunk: int = CHUNK
    ) -> int:
        """Remove values older than `before`, all but the newest of each series, and series without any.

        Series whose newest value is older than `idle_before` go as a whole: those of jobs that ended make room.
        In transactions of some `chunk` rows: others write meanwhile, and one that was cut short is gone on with.
        """
        removed = self._delete(rates.c.at < before, chunk)
        for key in sorted(self.by_id()):
            mine = rates.c.series_id == key
            with reading(self.engine) as connection:
                newest_first = select(rates.c.at).where(mine).order_by(desc(rates.c.at)).limit(1)
                newest = connection.execute(newest_first).scalar()
                edge = connection.execute(newest_first.offset(points_per_series)).scalar()
            if newest is not None and newest < idle_before:
                edge = newest
            if edge is not None:
                removed += self._delete(mine & (rates.c.at <= edge), chunk)
        with writing(self.engine) as connection:
            has_rates = select(rates.c.at).where(rates.c.series_id == series.c.id).exists()
            connection.execute(delete(series).where(~has_rates))
        return removed

    def _delete(self, which: ColumnElement[bool], chunk: int) -> int:
        removed = 0
        while True:
            with writing(self.engine) as connection:
                oldest = select(rates.c.at).where(which).order_by(rates.c.at).limit(1).offset(chunk)
                edge = connection.execute(oldest).scalar()
                gone = which if edge is None else which & (rates.c.at <= edge)
                removed += connection.execute(delete(rates).where(gone)).rowcount
            if edge is None:
                return removed

    def by_id(self) -> Mapping[int, tuple[str, float]]:
        """Name and step of every series."""
        with reading(self.engine) as connection:
            query = select(series.c.id, series.c.name, series.c.step_s)
            return {int(key): (str(name), float(step_s)) for key, name, step_s in connection.execute(query)}

    def insert(self, table: Table) -> Any:
        """An insert that can say what happens on a conflict, in the server's dialect."""
        return (postgresql if self.engine.dialect.name == "postgresql" else sqlite).insert(table)
