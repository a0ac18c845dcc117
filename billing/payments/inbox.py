"""What Stripe tells us: stored and applied in one transaction, once, in any order, however late.

An event whose effect fails is not stored either, so that Stripe's next attempt finds nothing in its way. One
that speaks of something not known yet waits for it here; one that concerns us not is kept with the reason.
"""

from dataclasses import dataclass, field
from datetime import datetime

from billing.db.access import OPERATOR_READ, SETTLER
from billing.db.transaction import Connection, Database
from billing.errors import PaymentUnknown, WebhookRefused
from billing.ledger import repository as ledger
from billing.ledger.balance import BalanceVersion
from billing.payments import repository, signature
from billing.payments.applying import InvoiceBook, Outcome, apply
from billing.payments.event import Event, Received, event_of


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of a webhook; ``new`` False: we had it. ``balances``: what tenants can spend now."""

    event_id: str
    outcome: Outcome | None
    balances: list[BalanceVersion] = field(default_factory=list)

    @property
    def new(self) -> bool:
        """Whether it was the first of its event."""
        return self.outcome is not None


class Inbox:
    """The receiving end. It calls nobody.

    Args:
        secret: of the webhook's endpoint, ``whsec_…``; None: no webhook is accepted.
        invoices: where those that Stripe has collected are booked; None: that is done later.
    """

    def __init__(
        self, database: Database, secret: str | None = None, invoices: InvoiceBook | None = None
    ) -> None:
        self._invoices = invoices
        self._database = database
        self._secret = secret

    async def receive(self, body: bytes, header: str | None, at: datetime) -> Receipt:
        """Take in a webhook.

        Args:
            body: as it came.
            header: ``Stripe-Signature``.
            at: now.

        Raises:
            WebhookRefused: not signed by Stripe, or unreadable; nothing is stored.
            StoreUnavailable: nothing is stored: Stripe sends it again.
        """
        if self._secret is None:
            raise WebhookRefused("no secret is set")
        signature.check(body, header, self._secret, at)
        event = event_of(body)
        async with self._database.transaction(SETTLER) as connection:
            fresh = Received(event.id, None, event.fact.id, event.type, event.at, at, "ignored", None)
            if await repository.insert_event(connection, fresh, body):
                return await self._apply(connection, event, at)
            known = await repository.select_event(connection, event.id)
            assert known is not None
            return Receipt(event.id, None, await _present(connection, known[0].tenant_id))

    async def retry(self, event_id: str, at: datetime) -> Receipt:
        """Apply an event again that was ignored or waits.

        Raises:
            PaymentUnknown: no event has this id.
        """
        async with self._database.transaction(SETTLER) as connection:
            found = await repository.select_event(connection, event_id)
            if found is None:
                raise PaymentUnknown(event_id)
            received, body = found
            if received.outcome == "applied":
                return Receipt(event_id, None, await _present(connection, received.tenant_id))
            return await self._apply(connection, event_of(body), at)

    async def _apply(self, connection: Connection, event: Event, at: datetime) -> Receipt:
        outcome = await apply(connection, event.fact, at, self._invoices)
        await repository.update_event(connection, event.id, outcome.row(at))
        return Receipt(event.id, outcome, outcome.balances)

    async def events(
        self, *, event_id: str | None = None, tenant_id: str | None = None, rows_max: int = 100
    ) -> list[Received]:
        """The newest events, one alone or those of a tenant, or all."""
        wanted = {"id": event_id, "tenant_id": tenant_id}
        async with self._database.transaction(OPERATOR_READ) as connection:
            return await repository.select_events(connection, wanted, rows_max)


async def _present(connection: Connection, tenant_id: str | None) -> list[BalanceVersion]:
    return [] if tenant_id is None else await ledger.select_versions(connection, [tenant_id])
