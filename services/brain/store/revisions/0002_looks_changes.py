"""Looks at jobs that train, and what came of changes."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None
works_from = "0001"


def upgrade() -> None:
    """Make both tables."""
    op.create_table(
        "brain_looks",
        sa.Column("job_id", sa.String(200), primary_key=True),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
    )
    op.create_index("brain_looks_at", "brain_looks", ["at"])
    op.create_table(
        "brain_changes",
        sa.Column("plan_id", sa.String(64), primary_key=True),
        sa.Column("job_id", sa.String(200), nullable=False),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
    )
    op.create_index("brain_changes_job", "brain_changes", ["job_id", "at"])
    op.create_index("brain_changes_at", "brain_changes", ["at"])


def downgrade() -> None:
    """Drop them."""
    for name in ("brain_changes", "brain_looks"):
        op.drop_table(name)
