"""Forecasts that wait for the truth, and those that it has come for. Bounded by number for each series and lead."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, delete, desc, select, update

from recmesh.runtime.sql import reading, writing
from services.forecaster.domain.scoring import Promise, Scored
from services.forecaster.store.sql import SqlStore
from services.forecaster.store.tables import promises, series

KEPT = 500
"""Newest of a series, step and lead."""
_COLUMNS = tuple(promises.c[name] for name in Promise.__dataclass_fields__)


class Promises:
    """Every method is one transaction unless it says otherwise."""

    def __init__(self, store: SqlStore, *, kept: int = KEPT) -> None:
        self._store, self._kept = store, kept

    def keep(self, name: str, own_step_s: float, made: Sequence[Promise]) -> None:
        """One that is kept already stays as it is: it was made first, and may have its truth."""
        if not made:
            return
        with writing(self._store.engine) as connection:
            key = connection.execute(select(series.c.id).where(_is(name, own_step_s))).scalar()
            if key is None:         # forgotten meanwhile
                return
            rows = [{"series_id": key, **{field: getattr(each, field) for field in Promise.__dataclass_fields__}}
                    for each in made]
            connection.execute(self._store.insert(promises).on_conflict_do_nothing(), rows)
            for each in made:
                of_lead = (
                    (promises.c.series_id == key) & (promises.c.step_s == each.step_s) & (promises.c.lead == each.lead)
                )
                newest = select(promises.c.at).where(of_lead).order_by(desc(promises.c.at))
                edge = connection.execute(newest.limit(1).offset(self._kept)).scalar()
                if edge is not None:
                    connection.execute(delete(promises).where(of_lead & (promises.c.at <= edge)))

    def settle(self, name: str, own_step_s: float, *, end: float) -> int:
        """Give each promise for a step that ended by `end` what came in it; how many. Three transactions.

        What came is read once: later corrections of a rate do not change a score. A step without any value stays
        open, until newer promises take its place.
        """
        query = self._of(name, own_step_s, promises.c.series_id, *_COLUMNS).where(
            promises.c.actual.is_(None) & (promises.c.at + promises.c.step_s <= end)
        )
        with reading(self._store.engine) as connection:
            open_ones = list(connection.execute(query))
        settled: list[tuple[Row[Any], float]] = []
        for step_s in {float(row.step_s) for row in open_ones}:
            mine = [row for row in open_ones if row.step_s == step_s]
            first, last = min(row.at for row in mine), max(row.at for row in mine)
            came = self._store.points(name, own_step_s, since=first, until=last + step_s, on=step_s)
            values = {round(point.at / step_s): point.value for point in came}
            settled += [(row, values[place]) for row in mine if (place := round(row.at / step_s)) in values]
        if settled:
            with writing(self._store.engine) as connection:
                for row, actual in settled:
                    same = (
                        (promises.c.series_id == row.series_id) & (promises.c.step_s == row.step_s)
                        & (promises.c.lead == row.lead) & (promises.c.at == row.at) & promises.c.actual.is_(None)
                    )  # fmt: skip
                    connection.execute(update(promises).where(same).values(actual=actual))
        return len(settled)

    def scored(self, name: str, own_step_s: float, *, limit: int) -> list[Scored]:
        """The newest, by their moment, oldest first."""
        query = self._of(name, own_step_s, *_COLUMNS, promises.c.actual).where(promises.c.actual.is_not(None))
        with reading(self._store.engine) as connection:
            found = connection.execute(query.order_by(desc(promises.c.at), desc(promises.c.lead)).limit(limit)).all()
        return [Scored(Promise(*row[:-1]), float(row[-1])) for row in reversed(found)]

    def _of(self, name: str, own_step_s: float, *columns: Any) -> Select[Any]:
        return select(*columns).join(series, series.c.id == promises.c.series_id).where(_is(name, own_step_s))


def _is(name: str, own_step_s: float) -> ColumnElement[bool]:
    return (series.c.name == name) & (series.c.step_s == own_step_s)
