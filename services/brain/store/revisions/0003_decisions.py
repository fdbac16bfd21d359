"""Looks that led to a plan."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None
works_from = "0001"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "brain_decisions",
        sa.Column("plan_id", sa.String(64), primary_key=True),
        sa.Column("job_id", sa.String(200), nullable=False),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
    )
    op.create_index("brain_decisions_job", "brain_decisions", ["job_id", "at"])
    op.create_index("brain_decisions_at", "brain_decisions", ["at"])


def downgrade() -> None:
    """Drop it."""
    op.drop_table("brain_decisions")
