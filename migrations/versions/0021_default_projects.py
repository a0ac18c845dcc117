"""Give each tenant its project `default`, put its keys there, and keep their digests as secrets.

One phase: backfill. Keys go on doing what they could do.
"""

from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
        INSERT INTO project (id, tenant_id, name, created_at)
        SELECT 'prj_' || left(md5(id), 24), id, 'default', created_at FROM tenant
    """)
    op.execute("""
        UPDATE api_key k
        SET project_id = p.id, scopes = '{inference,usage_read}', traffic_classes = '{agent,chat}'
        FROM project p WHERE p.tenant_id = k.tenant_id AND p.name = 'default' AND k.project_id IS NULL
    """)
    op.execute("""
        INSERT INTO key_secret (digest, tenant_id, key_id, prefix, created_at)
        SELECT digest, tenant_id, id, prefix, created_at FROM api_key
    """)


def downgrade() -> None:
    """Back to one secret a key: what is left of a rotation's grace is lost."""
    op.execute("""
        UPDATE api_key k SET digest = s.digest, prefix = s.prefix
        FROM key_secret s WHERE s.key_id = k.id AND s.ends_at IS NULL
    """)
    op.execute("DELETE FROM key_secret")
    op.execute("UPDATE api_key SET project_id = NULL")
    op.execute("DELETE FROM budget WHERE project_id IS NOT NULL")
    op.execute("DELETE FROM usage_limit WHERE project_id IS NOT NULL")
    op.execute("DELETE FROM project")
