"""Histories, plans and profiles."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the first three tables."""
    op.create_table(
        "brain_jobs",
        sa.Column("job_id", sa.String(200), primary_key=True),
        sa.Column("owner", sa.String(200), nullable=False),
        sa.Column("outcome", sa.String(40), nullable=False),
        sa.Column("ended", sa.Float(53), nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
    )
    op.create_index("brain_jobs_ended", "brain_jobs", ["ended"])
    op.create_index("brain_jobs_owner", "brain_jobs", ["owner", "ended"])
    op.create_table(
        "brain_plans",
        sa.Column("plan_id", sa.String(64), primary_key=True),
        sa.Column("job_id", sa.String(200), nullable=False),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("source", sa.String(40), nullable=False),
        sa.Column("explanation", sa.Text, nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
    )
    op.create_index("brain_plans_job", "brain_plans", ["job_id", "at"])
    op.create_index("brain_plans_at", "brain_plans", ["at"])
    op.create_table(
        "brain_profiles",
        sa.Column("job_id", sa.String(200), primary_key=True),
        sa.Column("at", sa.Float(53), primary_key=True),
        sa.Column("workers", sa.Integer, nullable=False),
        sa.Column("ps", sa.Integer, nullable=False),
        sa.Column("samples_per_s", sa.Float(53), nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
    )
    op.create_index("brain_profiles_at", "brain_profiles", ["at"])


def downgrade() -> None:
    """Drop them."""
    for name in ("brain_profiles", "brain_plans", "brain_jobs"):
        op.drop_table(name)
