"""What the migrations from one table of usage events to partitions share."""

from alembic import op
from sqlalchemy import text

from migrations.protection import unforced

TABLE = "usage_event_by_month"
INDEXES = {
    "rated_at_request_id": "(rated_at, request_id)",
    "recorded_at": "USING brin (recorded_at) WITH (autosummarize = on)",
    "tenant_id_rated_at_request_id": "(tenant_id, rated_at, request_id)",
}
CHUNK = 50_000  # rows of a statement: far below its time limit


def create(table: str, like: str, partitioning: str) -> None:
    """An empty table of the same columns and constraints."""
    including = "INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING COMMENTS"
    op.execute(f"CREATE TABLE {table} (LIKE {like} {including}) {partitioning}")
    op.execute(f"ALTER TABLE {table} ADD CONSTRAINT pk_{table} PRIMARY KEY (request_id)")
    for name, columns in INDEXES.items():
        op.execute(f"CREATE INDEX ix_{table}_{name} ON {table} {columns}")


def rename(old: str, new: str) -> None:
    """With its primary key and indexes; the names of other constraints are the table's own."""
    op.rename_table(old, new)
    op.execute(f"ALTER TABLE {new} RENAME CONSTRAINT pk_{old} TO pk_{new}")
    for name in INDEXES:
        op.execute(f"ALTER INDEX ix_{old}_{name} RENAME TO ix_{new}_{name}")


def check_references(table: str) -> None:
    """Look once a statement whether what new events refer to is there, as since 0030."""
    op.execute(f"""
        CREATE TRIGGER usage_event_references AFTER INSERT ON {table}
        REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION usage_event_references()
    """)


def copy(source: str, target: str) -> None:
    """All rows, in the order of their ids."""
    chunk = text(f"""
        WITH copied AS (
            INSERT INTO {target} SELECT * FROM {source}
            WHERE CAST(:after AS uuid) IS NULL OR request_id > CAST(:after AS uuid)
            ORDER BY request_id LIMIT {CHUNK} RETURNING request_id
        ) SELECT request_id FROM copied ORDER BY request_id DESC LIMIT 1
    """)  # noqa: S608  names from the two migrations
    connection, after = op.get_bind(), None
    with unforced(source):
        while (last := connection.execute(chunk, {"after": after}).scalar_one_or_none()) is not None:
            after = str(last)
