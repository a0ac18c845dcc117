"""A tenant's credit in memory while its balance is locked: each change yields the entries that record it."""

from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID

from billing.errors import AmountExceeds
from billing.ledger.balance import PREPAID, BalanceVersion, BillingTerms
from billing.ledger.credit import Correction, Grant, Movement, Refund, WriteOff
from billing.ledger.entries import ENDED_TO, SOURCE_OF, Account, Entry, net
from billing.ledger.lot import Lot
from billing.money import ZERO, Femto, decimal_of


@dataclass(frozen=True, slots=True)
class GivenBack:
    """A credit note: the entries on our side, below zero in all; of it, what was open, and what granted."""

    transaction_id: UUID
    faced: Sequence[Entry]
    open: Femto
    granted: Femto = ZERO


@dataclass(slots=True)
class Wallet:
    """Open lots in order of use, and the balances they make up.

    ``granted`` is the sum of granted lots. ``topped_up`` is the sum of topped-up lots, or debt, never both:
    a prepaid charge makes debt only when all lots are empty, and credit pays debt first. A refund that is
    gone already leaves granted lots alone: they may be there beside debt.
    """

    tenant_id: str
    granted: Femto
    topped_up: Femto
    version: int
    lots: list[Lot]
    receivable: Femto = ZERO
    terms: BillingTerms = PREPAID
    changed: dict[UUID, Lot] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lots.sort()

    @property
    def balance(self) -> BalanceVersion:
        """What can be spent."""
        spendable = self.terms.spendable(self.granted, self.topped_up, self.receivable)
        return BalanceVersion(self.tenant_id, spendable, self.version)

    def charge(self, amount: Femto) -> tuple[Entry, ...]:
        """Draw on lots in order; what they do not cover is debt. A postpaid tenant comes to owe it all."""
        assert amount >= 0, f"a charge of {amount}"
        if amount == 0:
            return ()
        postpaid = self.terms.mode == "postpaid"
        drawn = [Entry(Account.RECEIVABLE, Femto(-amount))] if postpaid else self._draw(amount)
        drawn.append(Entry(Account.REVENUE, amount))
        return self._book(tuple(drawn))

    def move(self, transaction_id: UUID, movement: Movement, at: datetime) -> tuple[Entry, ...]:
        """Do what a person asked for.

        Raises:
            AmountExceeds: a refund of more than remains of paid credit, a write-off of more than is owed.
        """
        match movement:
            case Grant():
                return self.credit(transaction_id, movement, at)
            case Refund():
                return self._refund(movement)
            case WriteOff():
                return self._write_off(movement.amount)
            case Correction(favours="house"):
                return self.charge(movement.amount)
            case Correction():
                lot = Lot(transaction_id, Account.TOPPED_UP, movement.amount, movement.amount, at, None)
                return self._open(lot, Account.REVENUE)

    def credit(self, lot_id: UUID, grant: Grant, at: datetime) -> tuple[Entry, ...]:
        """Open a lot, its beginning spent on what is owed."""
        lot = Lot(lot_id, grant.account, grant.amount, grant.amount, at, grant.expires_at, grant.priority)
        return self._open(lot, SOURCE_OF[grant.account])

    def invoice(self, faced: Sequence[Entry], applied: Femto) -> tuple[Entry, ...]:
        """Put on the receivable what an invoice adds to usage, ``faced`` by ours; pay part of it from lots.

        ``applied`` is at most what lots hold.
        """
        _at_most(self.granted + max(0, self.topped_up), applied, "credit that there is")
        added = Femto(-sum(entry.amount for entry in faced))
        drawn = self._draw(applied) if applied else []
        paid = Entry(Account.RECEIVABLE, Femto(added + applied))
        return self._apply((*faced, *drawn, paid))

    def give_back(self, note: GivenBack, at: datetime) -> tuple[Entry, ...]:
        """Book a credit note: what is open is off the receivable, what was paid is credit again.

        What granted credit had paid is given back apart, by a `Grant`: a lot is one transaction's.
        """
        paid = Femto(-sum(entry.amount for entry in note.faced) - note.open - note.granted)
        assert paid >= 0, f"{note.transaction_id} gives back {-paid} more than it takes"
        entries = [*note.faced, Entry(Account.RECEIVABLE, note.open), Entry(Account.PROMOTION, note.granted)]
        if paid:
            debt_paid = min(paid, max(0, -self.topped_up))
            rest = Femto(paid - debt_paid)
            lot = Lot(note.transaction_id, Account.TOPPED_UP, paid, rest, at, None)
            self.changed[lot.id] = lot
            if rest:
                insort(self.lots, lot)
            entries += (Entry(lot.account, rest, lot.id), Entry(Account.TOPPED_UP, Femto(debt_paid)))
        return self._apply(entries)

    def settle(self, amount: Femto, by: Account) -> tuple[Entry, ...]:
        """Take an invoice, or a part, off the receivable: it was paid into, or given up by, this account."""
        return self._apply((Entry(Account.RECEIVABLE, amount), Entry(by, Femto(-amount))))

    def expire(self, at: datetime) -> tuple[Entry, ...]:
        """Take back what remains in lots that have ended by ``at``."""
        ended = [lot for lot in self.lots if lot.expires_at is not None and lot.expires_at <= at]
        entries: list[Entry] = []
        for lot in ended:
            rest = lot.remaining
            entries += (self._take(lot, rest), Entry(ENDED_TO[lot.account], rest))
        return self._apply(entries)

    def _open(self, whole: Lot, source: Account) -> tuple[Entry, ...]:
        debt_paid = min(whole.amount, max(0, -self.topped_up))
        # Granted credit waits for the invoice: it is no payment.
        pays = self.terms.mode == "postpaid" and whole.account is Account.TOPPED_UP
        due_paid = min(whole.amount - debt_paid, max(0, -self.receivable)) if pays else 0
        lot = replace(whole, remaining=Femto(whole.amount - debt_paid - due_paid))
        self.changed[lot.id] = lot
        if lot.remaining:
            insort(self.lots, lot)
        return self._apply(
            (
                Entry(lot.account, lot.remaining, lot.id),
                Entry(Account.TOPPED_UP, Femto(debt_paid)),
                Entry(Account.RECEIVABLE, Femto(due_paid)),
                Entry(source, Femto(-lot.amount)),
            )
        )

    def _refund(self, refund: Refund) -> tuple[Entry, ...]:
        named = refund.lot_id
        paid = [lot for lot in self.lots if lot.account is Account.TOPPED_UP and named in {None, lot.id}]
        if not refund.gone:
            _at_most(sum(lot.remaining for lot in paid), refund.amount, "paid credit that remains")
        left = int(refund.amount)
        entries = []
        for lot in paid:
            part = Femto(min(left, lot.remaining))
            left -= part
            if part:
                entries.append(self._take(lot, part))
        debt = Entry(Account.TOPPED_UP, Femto(-left))
        return self._apply((*entries, debt, Entry(Account.CASH, refund.amount)))

    def _write_off(self, amount: Femto) -> tuple[Entry, ...]:
        debt, due = max(0, -self.topped_up), max(0, -self.receivable)
        _at_most(debt + due, amount, "debt")
        forgiven = min(amount, debt)
        return self._apply(
            (
                Entry(Account.TOPPED_UP, Femto(forgiven)),
                Entry(Account.RECEIVABLE, Femto(amount - forgiven)),
                Entry(Account.BAD_DEBT, Femto(-amount)),
            )
        )

    def _draw(self, amount: Femto) -> list[Entry]:
        owed, entries = int(amount), []
        while owed and self.lots:
            lot = self.lots[0]
            part = Femto(min(owed, lot.remaining))
            owed -= part
            entries.append(self._take(lot, part))
        if owed:
            entries.append(Entry(Account.TOPPED_UP, Femto(-owed)))
        return entries

    def _take(self, lot: Lot, part: Femto) -> Entry:
        lot.draw(part)
        self.changed[lot.id] = lot
        if not lot.remaining:
            self.lots.remove(lot)
        return Entry(lot.account, Femto(-part), lot.id)

    def _apply(self, entries: Iterable[Entry]) -> tuple[Entry, ...]:
        return self._book(tuple(net(entries)))

    def _book(self, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        """Change the balances by entries of which no two are on the same account and lot."""
        for account, amount, _ in entries:
            if account is Account.GRANTED:
                self.granted = Femto(self.granted + amount)
            elif account is Account.TOPPED_UP:
                self.topped_up = Femto(self.topped_up + amount)
            elif account is Account.RECEIVABLE:
                self.receivable = Femto(self.receivable + amount)
        return entries

    def check(self) -> None:
        """Assert that lots and balances agree: before they are written."""
        held = {Account.GRANTED: 0, Account.TOPPED_UP: 0}
        for lot in self.lots:
            held[lot.account] += lot.remaining
        assert held[Account.GRANTED] == self.granted, (
            f"{self.tenant_id}: lots differ from the granted balance"
        )
        assert held[Account.TOPPED_UP] == max(0, self.topped_up), (
            f"{self.tenant_id}: lots differ from the balance"
        )


def _at_most(there: int, asked: Femto, of: str) -> None:
    if asked > there:
        raise AmountExceeds(decimal_of(asked), of, decimal_of(Femto(there)))
