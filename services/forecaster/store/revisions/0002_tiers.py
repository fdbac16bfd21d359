"""Rates on coarser steps."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Each rate has its own step."""
    key = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.add_column("forecaster_rates", sa.Column("step_s", sa.Float(53), nullable=False, server_default="0"))
    op.add_column("forecaster_rates", sa.Column("steps", sa.Integer, nullable=False, server_default="1"))
    op.execute(
        "UPDATE forecaster_rates SET step_s ="
        " (SELECT step_s FROM forecaster_series WHERE forecaster_series.id = forecaster_rates.series_id)"
    )
    op.create_table(
        "forecaster_coarse",
        sa.Column("series_id", key, sa.ForeignKey("forecaster_series.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("step_s", sa.Float(53), primary_key=True),
        sa.Column("until", sa.Float(53), nullable=False),
    )


def downgrade() -> None:
    """Back to one step; means of coarser ones stay as single values."""
    op.drop_table("forecaster_coarse")
    with op.batch_alter_table("forecaster_rates") as table:
        table.drop_column("steps")
        table.drop_column("step_s")
