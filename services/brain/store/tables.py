"""The schema as SQLAlchemy sees it; `revisions/` is how a database gets there, and a test compares them."""

from sqlalchemy import JSON, Boolean, Column, Float, Index, Integer, MetaData, String, Table, Text

VERSION_TABLE = "brain_schema"
metadata = MetaData()

jobs = Table(
    "brain_jobs",
    metadata,
    Column("job_id", String(200), primary_key=True),
    Column("owner", String(200), nullable=False),
    Column("outcome", String(40), nullable=False),
    Column("ended", Float(53), nullable=False),
    Column("document", JSON, nullable=False),
    Index("brain_jobs_ended", "ended"),
    Index("brain_jobs_owner", "owner", "ended"),
)

plans = Table(
    "brain_plans",
    metadata,
    Column("plan_id", String(64), primary_key=True),
    Column("job_id", String(200), nullable=False),
    Column("at", Float(53), nullable=False),
    Column("source", String(40), nullable=False),
    Column("explanation", Text, nullable=False),
    Column("document", JSON, nullable=False),
    Index("brain_plans_job", "job_id", "at"),
    Index("brain_plans_at", "at"),
)

profiles = Table(
    "brain_profiles",
    metadata,
    Column("job_id", String(200), primary_key=True),
    Column("at", Float(53), primary_key=True),
    Column("workers", Integer, nullable=False),
    Column("ps", Integer, nullable=False),
    Column("samples_per_s", Float(53), nullable=False),
    Column("document", JSON, nullable=False),
    Index("brain_profiles_at", "at"),
)

looks = Table(
    "brain_looks",
    metadata,
    Column("job_id", String(200), primary_key=True),
    Column("at", Float(53), nullable=False),
    Column("document", JSON, nullable=False),
    Index("brain_looks_at", "at"),
)

changes = Table(
    "brain_changes",
    metadata,
    Column("plan_id", String(64), primary_key=True),
    Column("job_id", String(200), nullable=False),
    Column("at", Float(53), nullable=False),
    Column("document", JSON, nullable=False),
    Index("brain_changes_job", "job_id", "at"),
    Index("brain_changes_at", "at"),
)

decisions = Table(
    "brain_decisions",
    metadata,
    Column("plan_id", String(64), primary_key=True),
    Column("job_id", String(200), nullable=False),
    Column("at", Float(53), nullable=False),
    Column("document", JSON, nullable=False),
    Index("brain_decisions_job", "job_id", "at"),
    Index("brain_decisions_at", "at"),
)

loans = Table(
    "brain_loans",
    metadata,
    Column("loan_id", String(64), primary_key=True),
    Column("is_open", Boolean, nullable=False),
    Column("planned", Float(53), nullable=False),
    Column("document", JSON, nullable=False),
    Index("brain_loans_open", "is_open", "planned"),
    Index("brain_loans_planned", "planned"),
)
