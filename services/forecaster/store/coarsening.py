"""Old rates become means of coarser steps, in transactions of a few thousand rows.

A transaction replaces the rows of whole buckets by their means and notes how far it came. One that was cut short, by
a kill at any moment, has changed nothing; the next call goes on where the last one ended.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, delete, insert, select

from recmesh.runtime.sql import reading, writing
from services.forecaster.domain.series import snapped
from services.forecaster.domain.tiers import Stored, Tier, coarser, for_step
from services.forecaster.store.sql import CHUNK, SqlStore
from services.forecaster.store.tables import coarse, rates, series


@dataclass(frozen=True, slots=True)
class _Work:
    """Of one series and tier: everything before `until` is on `step_s` then."""

    series_id: int
    step_s: float
    until: float


def coarsen(store: SqlStore, tiers: Sequence[Tier], *, now: float, chunk: int = CHUNK) -> int:
    """Returns how many rows were replaced. Replicas may do it at the same time."""
    replaced, work = 0, list(_work(store, tiers, now))
    while work:
        with writing(store.engine) as connection:
            room = chunk
            while work and room > 0:
                count, is_done = _advance(connection, store, work[-1], room)
                replaced += count
                room -= max(count, chunk // 100)        # a look costs something, too
                if is_done:
                    work.pop()
    return replaced


def _work(store: SqlStore, tiers: Sequence[Tier], now: float) -> Iterator[_Work]:
    """Where there is any, the finer tiers of a series last, as they are done from the end.

    Asked for in one transaction that only reads: of thousands of series few have some at a time.
    """
    series_of = store.by_id()
    with reading(store.engine) as connection:
        marks = {(int(key), float(step_s)): float(until) for key, step_s, until in connection.execute(select(coarse))}
        for key, (_, own_step_s) in sorted(series_of.items(), reverse=True):
            is_found, found = False, []
            for tier in for_step(own_step_s, tiers):
                until = snapped(now - tier.age_s, tier.step_s)
                since = marks.get((key, tier.step_s), 0.0)
                values = {"key": key, "step_s": tier.step_s, "since": since, "until": until}
                # What a finer tier is about to make may be old enough for the coarser ones, too.
                is_found = is_found or connection.execute(_ANY, values).scalar() is not None
                if is_found:
                    found.append(_Work(key, tier.step_s, until))
            yield from reversed(found)


_ANY = select(rates.c.at).where(
    (rates.c.series_id == bindparam("key")) & (rates.c.step_s < bindparam("step_s"))
    & (rates.c.at >= bindparam("since")) & (rates.c.at < bindparam("until"))
).limit(1)  # fmt: skip


def _advance(connection: Connection, store: SqlStore, work: _Work, most: int) -> tuple[int, bool]:
    """Some buckets further; how many rows were replaced, and whether the work is done."""
    # 1. Nobody else changes the series meanwhile (SQLite has one writer anyway).
    lock = select(series.c.id).where(series.c.id == work.series_id).with_for_update()
    if connection.execute(lock).scalar() is None:
        return 0, True
    mark = (coarse.c.series_id == work.series_id) & (coarse.c.step_s == work.step_s)
    begun = connection.execute(select(coarse.c.until).where(mark)).scalar() or 0.0
    # 2. Rows of whole buckets.
    finer = (
        (rates.c.series_id == work.series_id) & (rates.c.step_s < work.step_s)
        & (rates.c.at >= snapped(begun, work.step_s)) & (rates.c.at < work.until)
    )  # fmt: skip
    columns = (rates.c.at, rates.c.value, rates.c.step_s, rates.c.steps)
    query = select(*columns).where(finer).order_by(rates.c.at)
    rows = [Stored(*row) for row in connection.execute(query.limit(most + 1))]
    until, is_done = work.until, len(rows) <= most
    if not is_done:
        until = snapped(rows[-1].at, work.step_s)
        if until <= snapped(rows[0].at, work.step_s):       # one bucket has more rows than the transaction should
            until += work.step_s
            rows = [Stored(*row) for row in connection.execute(query.where(rates.c.at < until))]
        rows = [row for row in rows if row.at < until]
    # 3. Their means instead, and how far that was.
    if rows:
        connection.execute(delete(rates).where(finer & (rates.c.at < until)))
        means = [
            {"series_id": work.series_id, "at": each.at, "value": each.value, "step_s": each.step_s,
             "steps": each.steps}
            for each in coarser(rows, work.step_s)
        ]
        connection.execute(insert(rates), means)
    connection.execute(delete(coarse).where(mark))
    connection.execute(insert(coarse), {"series_id": work.series_id, "step_s": work.step_s, "until": until})
    return len(rows), is_done
