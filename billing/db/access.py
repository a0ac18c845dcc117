"""Who a transaction acts as: the roles of the database, and the tenant whose rows it may touch.

| role | sees | writes |
|---|---|---|
| the one that logs in | nothing: it owns the tables, and their row security is forced | the schema |
| ``SETTLER`` | all tenants | appends to events, attestations, ledger and audit; changes projections alone |
| ``OPERATOR`` | all tenants | tenancy and prices; drops what an erasure drops |
| ``OPERATOR_READ`` | all tenants | nothing |
| ``of_tenant`` | one tenant | what that tenant manages itself |
| ``view_as`` | one tenant | nothing: its transaction is read-only too |

What a role may write is granted table by table, in the migration that makes the table.
"""

from dataclasses import dataclass
from typing import Final

SETTLER_ROLE: Final = "kvitto_settler"
OPERATOR_ROLE: Final = "kvitto_operator"
OPERATOR_READ_ROLE: Final = "kvitto_operator_read"
TENANT_ROLE: Final = "kvitto_tenant"
VIEW_AS_ROLE: Final = "kvitto_view_as"

ALL_TENANTS: Final = (SETTLER_ROLE, OPERATOR_ROLE, OPERATOR_READ_ROLE)
ONE_TENANT: Final = (TENANT_ROLE, VIEW_AS_ROLE)
ROLES: Final = (*ALL_TENANTS, *ONE_TENANT)

TENANT_SETTING: Final = "kvitto.tenant_id"


@dataclass(frozen=True, slots=True)
class Access:
    """``role`` None is the one that logged in; ``tenant_id`` is whose rows the tenant's roles see."""

    role: str | None
    tenant_id: str | None = None
    read_only: bool = False

    @property
    def begin(self) -> str:
        """The statements that open a transaction so, for one round trip."""
        statements = ["BEGIN READ ONLY" if self.read_only else "BEGIN"]
        if self.role is not None:
            statements.append(f"SET LOCAL ROLE {self.role}")
        if self.tenant_id is not None:
            quoted = self.tenant_id.replace("'", "''")
            statements.append(f"SET LOCAL {TENANT_SETTING} = '{quoted}'")
        return "; ".join(statements)


OWNER: Final = Access(None)
SETTLER: Final = Access(SETTLER_ROLE)
OPERATOR: Final = Access(OPERATOR_ROLE)
OPERATOR_READ: Final = Access(OPERATOR_READ_ROLE, read_only=True)


def of_tenant(tenant_id: str) -> Access:
    """A tenant about its own rows; an id that no tenant has sees none."""
    return Access(TENANT_ROLE, tenant_id)


def writing(tenant_id: str | None) -> Access:
    """A tenant about its own rows where one is named, else the operator."""
    return OPERATOR if tenant_id is None else of_tenant(tenant_id)


def reading(tenant_id: str | None) -> Access:
    """Likewise, to read."""
    return OPERATOR_READ if tenant_id is None else of_tenant(tenant_id)


def view_as(tenant_id: str) -> Access:
    """An operator who looks through a tenant's eyes."""
    return Access(VIEW_AS_ROLE, tenant_id, read_only=True)


def roles_sql(login: str) -> tuple[str, ...]:
    """What a superuser runs once for the role that logs in, a statement each; again changes nothing.

    It inherits nothing of the roles, so that a transaction that names none sees no tenant.
    """
    taken = "duplicate_object OR unique_violation"
    made = (
        f"DO $$ BEGIN CREATE ROLE {role} NOLOGIN; EXCEPTION WHEN {taken} THEN NULL; END $$" for role in ROLES
    )
    return (*made, f'GRANT {", ".join(ROLES)} TO "{login}" WITH INHERIT FALSE, SET TRUE')
