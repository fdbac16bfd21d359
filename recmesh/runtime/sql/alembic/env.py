"""What alembic runs; the connection and its transaction are the caller's."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    version_table=context.config.attributes["version_table"],
    transactional_ddl=False,  # the caller's transaction holds all revisions, and ends with them
)
context.run_migrations()
