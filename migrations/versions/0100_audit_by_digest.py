"""Entries of the audit log hold what they say of before and after by a digest, so that it can be erased.

One phase: expand. Entries that are there keep their hash: it covers their facts themselves.
"""

import sqlalchemy as sa
from alembic import op

from billing.db.access import OPERATOR_ROLE

revision = "0100"
down_revision = "0099"
branch_labels = None
depends_on = None

BYTES = "octet_length(digest) = 32 AND octet_length(salt) = 32"


def upgrade() -> None:
    digest = sa.Column(
        "digest", sa.LargeBinary(), comment="of the facts and the salt; null: the hash covers the facts"
    )
    op.add_column("audit_event", digest)
    op.add_column(
        "audit_event",
        sa.Column("salt", sa.LargeBinary(), comment="null beside a digest: the facts were dropped"),
    )
    op.create_check_constraint(op.f("ck_audit_event_digest"), "audit_event", BYTES)
    op.execute(f'GRANT UPDATE ("before", "after", salt) ON audit_event TO {OPERATOR_ROLE}')


def downgrade() -> None:
    """Hashes of entries made since cannot be computed again without the columns."""
    op.execute(f'REVOKE UPDATE ("before", "after", salt) ON audit_event FROM {OPERATOR_ROLE}')
    op.drop_constraint(op.f("ck_audit_event_digest"), "audit_event")
    op.drop_column("audit_event", "salt")
    op.drop_column("audit_event", "digest")
