"""What tenants owe by their invoices."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime

from billing.db.transaction import Connection
from billing.invoicing.repository import select_overdue
from billing.lifecycle.dunning import OverdueDocument
from billing.money import FEMTO_PER_CENT, Femto


class InvoicedDebts:
    """Implements `billing.lifecycle.collection.Receivables`; a document is known by its number."""

    async def overdue(
        self, connection: Connection, at: datetime, tenant_id: str | None = None
    ) -> Mapping[str, Sequence[OverdueDocument]]:
        """Finalised invoices with something open that were due before ``at``, by tenant."""
        owed: dict[str, list[OverdueDocument]] = defaultdict(list)
        for one in await select_overdue(connection, at, tenant_id):
            assert one.due_at is not None, f"{one.number} is overdue, and never was due"
            amount = Femto(one.open_cents * FEMTO_PER_CENT)
            owed[one.tenant_id].append(
                OverdueDocument(one.number, one.number, one.due_at, amount, one.currency)
            )
        return owed
