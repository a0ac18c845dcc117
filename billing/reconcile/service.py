"""Reconciliation: books that must agree are compared, and what differs is named. Nothing is changed."""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from billing.db.access import OPERATOR_READ
from billing.db.transaction import Database
from billing.ledger.service import Ledger
from billing.payments.payment import Payment
from billing.receipts.log.service import ReceiptLog
from billing.receipts.receipt import Receipt
from billing.receipts.service import Receipts
from billing.reconcile import documents, repository
from billing.reconcile.documents import Documents
from billing.reconcile.finding import Finding
from engine.proof.ring import DeploymentRing

EVENTS_LEDGER: Final = "events = ledger"
EVENTS_RECEIPTS: Final = "events = receipts"
EVENTS_ATTESTATIONS: Final = "events = attestations"
LEDGER_BALANCES: Final = "ledger = balances"
LOG: Final = "receipt log"
INVOICES_EVENTS: Final = documents.CHECK
INVOICES_LEDGER: Final = "invoices = ledger"
STRIPE_LEDGER: Final = "Stripe = ledger"

EVER: Final = datetime(1970, 1, 1, tzinfo=UTC)

# What is one statement each, or several.
_STATEMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    EVENTS_LEDGER: (repository.EVENTS_AND_LEDGER, repository.CHARGES_WITHOUT_EVENT),
    EVENTS_RECEIPTS: (repository.EVENTS_WITHOUT_RECEIPT, repository.RECEIPTS_AND_EVENTS),
    INVOICES_EVENTS: (repository.NUMBERS,),
    INVOICES_LEDGER: (
        repository.DOCUMENTS_AND_LEDGER,
        repository.LEDGER_WITHOUT_DOCUMENT,
        repository.DOCUMENTS_PAID,
    ),
    STRIPE_LEDGER: (
        repository.PAYMENTS_AND_LEDGER,
        repository.LEDGER_WITHOUT_PAYMENT,
        repository.REVERSALS_OF_NOTHING,
        repository.ORDERS_FAILED,
    ),
}


@dataclass(frozen=True, slots=True)
class Window:
    """What was recorded in ``[since, until)``."""

    since: datetime
    until: datetime


Check = Callable[[Window], AsyncIterator[Finding]]


def _untold(_check: str) -> None:
    """Nobody wants to know how far it is."""


class Reconciliation:
    """Reads all books, and writes none.

    Args:
        ring: verifies what the deployment signed; None: signatures are not looked at.
    """

    def __init__(self, database: Database, ring: DeploymentRing | None = None) -> None:
        self._database = database
        self._ring = ring

    @property
    def checks(self) -> Mapping[str, tuple[Check, ...]]:
        """All, by what must agree."""
        named: dict[str, tuple[Check, ...]] = {
            EVENTS_LEDGER: (),
            EVENTS_RECEIPTS: (),
            EVENTS_ATTESTATIONS: (self._contradicted, self._unbilled),
            LEDGER_BALANCES: (self._ledger,),
            LOG: (self._log,),
            INVOICES_EVENTS: (self._documents,),
            INVOICES_LEDGER: (),
            STRIPE_LEDGER: (self._unmoved,),
        }
        return {name: (*self._compared(name), *own) for name, own in named.items()}

    async def run(
        self,
        since: datetime,
        until: datetime,
        begins: Callable[[str], None] = _untold,
    ) -> AsyncIterator[Finding]:
        """What differs, check by check; ``begins`` is told the name of each before it runs.

        Balances and the receipt log are looked at whole.

        Raises:
            StoreUnavailable: Postgres cannot be asked.
        """
        window = Window(since, max(since, until))
        for name, checks in self.checks.items():
            begins(name)
            for check in checks:
                async for finding in check(window):
                    yield finding

    def _compared(self, name: str) -> tuple[Check, ...]:
        return tuple(self._statement(name, each) for each in _STATEMENTS.get(name, ()))

    def _statement(self, name: str, statement: str) -> Check:
        async def check(window: Window) -> AsyncIterator[Finding]:
            async with self._database.transaction(OPERATOR_READ) as connection:
                async for row in repository.rows_of(connection, statement, window.since, window.until):
                    yield Finding.of(name, row)

        return check

    async def _contradicted(self, window: Window) -> AsyncIterator[Finding]:
        """Receipts of events whose attestations say otherwise."""
        receipts, after = Receipts(self._database), UUID(int=0)
        while True:
            async with self._database.transaction(OPERATOR_READ) as connection:
                page = await repository.select_requests(connection, window.since, window.until, after)
            for request_id, receipt in (await receipts.of(page)).items():
                if receipt.finding is not None:
                    yield Finding(EVENTS_ATTESTATIONS, str(request_id), receipt.finding)
            if len(page) < repository.PAGE:
                return
            after = page[-1]

    async def _unbilled(self, window: Window) -> AsyncIterator[Finding]:
        """Requests that workers served and the books do not have: admitted in the window."""
        for receipt in await Receipts(self._database).unbilled_between(window.since, window.until):
            if _served(receipt):
                workers = ", ".join(receipt.workers)
                differs = f"{workers} attested it, the books do not have it"
                yield Finding(EVENTS_ATTESTATIONS, str(receipt.request_id), differs)

    async def _ledger(self, _window: Window) -> AsyncIterator[Finding]:
        for object_id, fault in await Ledger(self._database).violations():
            yield Finding(LEDGER_BALANCES, object_id, fault)

    async def _log(self, _window: Window) -> AsyncIterator[Finding]:
        for fault in await ReceiptLog(self._database).check_integrity(self._ring):
            yield Finding(LOG, "log", fault)

    async def _documents(self, window: Window) -> AsyncIterator[Finding]:
        for finding in await Documents(self._database, self._ring).look(window.since, window.until):
            yield finding

    async def _unmoved(self, window: Window) -> AsyncIterator[Finding]:
        """Payments whose state asks for money to move that has not."""
        since, until = window.since, window.until
        async with self._database.transaction(OPERATOR_READ) as connection:
            async for row in repository.rows_of(connection, repository.PAYMENTS_TO_MOVE, since, until):
                payment = _payment(row)
                due = list(payment.legs_due())
                if due:
                    differs = f"it is {payment.status}, moved {payment.legs} times of {due[-1]}"
                    yield Finding(STRIPE_LEDGER, payment.id, differs)


def _served(receipt: Receipt) -> bool:
    """It got something: else it was lost before, and rightly costs nothing."""
    return any(one.output_to for one in receipt.attestations)


def _payment(row: Mapping[str, Any]) -> Payment:
    return Payment(**{name: row[name] for name in Payment.__slots__})
