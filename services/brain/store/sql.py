"""The config DB over SQLAlchemy: SQLite or PostgreSQL."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Engine, Table, delete, desc, func, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from recmesh.runtime.sql import migrate, open_engine, reading, writing
from services.brain.domain.loans.ledger import Loan
from services.brain.domain.model import Change, History, Look, Plan, Profile
from services.brain.store.documents import (
    to_change,
    to_document,
    to_history,
    to_loan,
    to_look,
    to_plan,
    to_profile,
)
from services.brain.store.tables import VERSION_TABLE, changes, decisions, jobs, loans, looks, plans, profiles

REVISIONS = Path(__file__).parent / "revisions"


class SqlStore:
    """Every method is one transaction, durable when it returns."""

    def __init__(self, url: str) -> None:
        self.engine: Engine = open_engine(url, what="brain")

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

    def put_history(self, history: History) -> None:
        """Insert or replace what is known of a job that ended."""
        self._upsert(
            jobs,
            ["job_id"],
            {
                "job_id": history.job.job_id,
                "owner": history.job.owner,
                "outcome": history.outcome,
                "ended": history.ended,
                "document": to_document(history),
            },
        )

    def histories(self, *, owner: str = "", outcome: str = "", limit: int = 100) -> list[History]:
        """The newest first."""
        query = select(jobs.c.document).order_by(desc(jobs.c.ended), jobs.c.job_id).limit(limit)
        if owner:
            query = query.where(jobs.c.owner == owner)
        if outcome:
            query = query.where(jobs.c.outcome == outcome)
        with reading(self.engine) as connection:
            return [to_history(document) for (document,) in connection.execute(query)]

    def put_plan(self, plan: Plan) -> None:
        """Insert; the same plan again changes nothing."""
        self._upsert(
            plans,
            ["plan_id"],
            {
                "plan_id": plan.plan_id,
                "job_id": plan.job_id,
                "at": plan.at,
                "source": plan.source,
                "explanation": plan.explanation,
                "document": to_document(plan),
            },
        )

    def plans(self, *, job_id: str = "", limit: int = 100) -> list[Plan]:
        """The newest first."""
        query = select(plans.c.document).order_by(desc(plans.c.at), plans.c.plan_id).limit(limit)
        if job_id:
            query = query.where(plans.c.job_id == job_id)
        with reading(self.engine) as connection:
            return [to_plan(document) for (document,) in connection.execute(query)]

    def first_plan(self, job_id: str) -> Plan | None:
        """The oldest one of a job that is kept."""
        query = select(plans.c.document).where(plans.c.job_id == job_id).order_by(plans.c.at, plans.c.plan_id).limit(1)
        with reading(self.engine) as connection:
            found = connection.execute(query).first()
        return to_plan(found[0]) if found is not None else None

    def running(self, *, since: float) -> list[Profile]:
        """The newest profile since then of each job, but of those that have ended after it."""
        newest = func.row_number().over(partition_by=profiles.c.job_id, order_by=desc(profiles.c.at)).label("place")
        ranked = (
            select(profiles.c.document, profiles.c.job_id, profiles.c.at, newest)
            .where(profiles.c.at >= since).subquery()
        )  # fmt: skip
        ended = select(jobs.c.job_id).where(jobs.c.job_id == ranked.c.job_id, jobs.c.ended >= ranked.c.at).exists()
        query = select(ranked.c.document).where(ranked.c.place == 1, ~ended)
        with reading(self.engine) as connection:
            return [to_profile(document) for (document,) in connection.execute(query)]

    def put_profile(self, profile: Profile) -> None:
        """Insert or replace the profile of that job and moment."""
        self._upsert(
            profiles,
            ["job_id", "at"],
            {
                "job_id": profile.job_id,
                "at": profile.at,
                "workers": profile.workers,
                "ps": profile.ps,
                "samples_per_s": profile.samples_per_s,
                "document": to_document(profile),
            },
        )

    def profiles(self, job_id: str, *, limit: int = 500) -> list[Profile]:
        """The newest `limit`, oldest first."""
        query = (
            select(profiles.c.document).where(profiles.c.job_id == job_id).order_by(desc(profiles.c.at)).limit(limit)
        )
        with reading(self.engine) as connection:
            found = [to_profile(document) for (document,) in connection.execute(query)]
        return found[::-1]

    def put_look(self, look: Look) -> None:
        """Insert or replace the newest look at a job; one that led to a plan is kept beyond the next, too."""
        row = {"job_id": look.job_id, "at": look.at, "document": to_document(look)}
        with writing(self.engine) as connection:
            connection.execute(self._upserting(looks, ["job_id"], row))
            if look.plan_id:
                connection.execute(self._upserting(decisions, ["plan_id"], row | {"plan_id": look.plan_id}))

    def look(self, job_id: str) -> Look | None:
        """The newest one at that job."""
        with reading(self.engine) as connection:
            found = connection.execute(select(looks.c.document).where(looks.c.job_id == job_id)).first()
        return to_look(found[0]) if found is not None else None

    def looks(self, *, limit: int = 100) -> list[Look]:
        """Of all jobs, the newest first."""
        query = select(looks.c.document).order_by(desc(looks.c.at), looks.c.job_id).limit(limit)
        with reading(self.engine) as connection:
            return [to_look(document) for (document,) in connection.execute(query)]

    def decisions(self, *, job_id: str = "", limit: int = 100) -> list[Look]:
        """Looks that led to a plan, the newest first."""
        query = select(decisions.c.document).order_by(desc(decisions.c.at), decisions.c.plan_id).limit(limit)
        if job_id:
            query = query.where(decisions.c.job_id == job_id)
        with reading(self.engine) as connection:
            return [to_look(document) for (document,) in connection.execute(query)]

    def put_change(self, change: Change) -> None:
        """Insert or replace what came of a plan."""
        self._upsert(
            changes,
            ["plan_id"],
            {
                "plan_id": change.plan_id,
                "job_id": change.job_id,
                "at": change.at,
                "document": to_document(change),
            },
        )

    def changes(self, *, job_id: str = "", limit: int = 100) -> list[Change]:
        """The newest first."""
        query = select(changes.c.document).order_by(desc(changes.c.at), changes.c.plan_id).limit(limit)
        if job_id:
            query = query.where(changes.c.job_id == job_id)
        with reading(self.engine) as connection:
            return [to_change(document) for (document,) in connection.execute(query)]

    def put_loans(self, made: Sequence[Loan]) -> None:
        """Insert or replace them, all or none."""
        with writing(self.engine) as connection:
            for loan in made:
                row = {
                    "loan_id": loan.loan_id, "is_open": loan.is_open, "planned": loan.planned,
                    "document": to_document(loan),
                }  # fmt: skip
                connection.execute(self._upserting(loans, ["loan_id"], row))

    def loans(self, *, is_open: bool = False, limit: int = 100) -> list[Loan]:
        """The newest first; is_open: those alone that are not back."""
        query = select(loans.c.document).order_by(desc(loans.c.planned), loans.c.loan_id).limit(limit)
        if is_open:
            query = query.where(loans.c.is_open)
        with reading(self.engine) as connection:
            return [to_loan(document) for (document,) in connection.execute(query)]

    def throughput(self, *, since: float, limit: int = 2000) -> list[tuple[str, float, float]]:
        """(job, at, samples/s) of the newest profiles since then, oldest first."""
        query = (
            select(profiles.c.job_id, profiles.c.at, profiles.c.samples_per_s)
            .where(profiles.c.at >= since)
            .order_by(desc(profiles.c.at), profiles.c.job_id)
            .limit(limit)
        )
        with reading(self.engine) as connection:
            found = [(str(job_id), float(at), float(rate)) for job_id, at, rate in connection.execute(query)]
        return found[::-1]

    def shown(self, job_id: str, *, each: int = 60) -> list[Profile]:
        """What the job has shown: of each number of workers and servers that it had the newest `each`, oldest first."""
        ranked = select(profiles.c.document, profiles.c.at, _newest_of_its_counts()).where(profiles.c.job_id == job_id)
        found = ranked.subquery()
        query = select(found.c.document).where(found.c.place <= each).order_by(found.c.at)
        with reading(self.engine) as connection:
            return [to_profile(document) for (document,) in connection.execute(query)]

    def forget(
        self, *, before: float, profiles_per_job: int, per_counts: int = 60, histories_before: float = -math.inf
    ) -> int:
        """Remove what is older than `before`, histories of jobs that ended before `histories_before`, and all but the
        newest profiles of each job: so many in all, and in any case some of each number of workers and servers.
        A loan that is not back stays."""
        newest = func.row_number().over(partition_by=profiles.c.job_id, order_by=desc(profiles.c.at)).label("of_all")
        ranked = select(profiles.c.job_id, profiles.c.at, newest, _newest_of_its_counts()).subquery()
        surplus = select(ranked.c.job_id, ranked.c.at).where(
            ranked.c.of_all > profiles_per_job, ranked.c.place > per_counts
        )
        removed = 0
        with writing(self.engine) as connection:
            for table in (profiles, plans, looks, changes, decisions):
                removed += connection.execute(delete(table).where(table.c.at < before)).rowcount
            removed += connection.execute(delete(loans).where(loans.c.planned < before, ~loans.c.is_open)).rowcount
            if histories_before > -math.inf:
                removed += connection.execute(delete(jobs).where(jobs.c.ended < histories_before)).rowcount
            removed += connection.execute(
                delete(profiles).where(tuple_(profiles.c.job_id, profiles.c.at).in_(surplus))
            ).rowcount
        return removed

    def _upsert(self, table: Table, keys: Sequence[str], row: dict[str, Any]) -> None:
        with writing(self.engine) as connection:
            connection.execute(self._upserting(table, keys, row))

    def _upserting(self, table: Table, keys: Sequence[str], row: dict[str, Any]) -> Any:
        dialect: Any = postgresql if self.engine.dialect.name == "postgresql" else sqlite
        statement = dialect.insert(table).values(row)
        rest = {name: statement.excluded[name] for name in row if name not in keys}
        return statement.on_conflict_do_update(index_elements=list(keys), set_=rest)


def _newest_of_its_counts() -> ColumnElement[int]:
    """1 for the newest profile of a job with so many workers and servers, and so on."""
    return (
        func.row_number()
        .over(
            partition_by=(profiles.c.job_id, profiles.c.workers, profiles.c.ps),
            order_by=desc(profiles.c.at),
        )
        .label("place")
    )
