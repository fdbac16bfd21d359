"""The ledger of loans."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None
works_from = "0001"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "brain_loans",
        sa.Column("loan_id", sa.String(64), primary_key=True),
        sa.Column("is_open", sa.Boolean, nullable=False),
        sa.Column("planned", sa.Float(53), nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
    )
    op.create_index("brain_loans_open", "brain_loans", ["is_open", "planned"])
    op.create_index("brain_loans_planned", "brain_loans", ["planned"])


def downgrade() -> None:
    """Drop it."""
    op.drop_table("brain_loans")
