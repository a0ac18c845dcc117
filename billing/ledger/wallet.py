"""A tenant's credit in memory while its balance is locked: each change yields the entries that record it."""

from bisect import insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID

from billing.ledger.balance import BalanceVersion
from billing.ledger.credit import Grant, Lot
from billing.ledger.entries import SOURCE_OF, Account, Entry, net
from billing.money import Femto


@dataclass(slots=True)
class Wallet:
    """Open lots in order of use, and the two balances they make up.

    ``granted`` is the sum of granted lots. ``topped_up`` is the sum of topped-up lots, or debt, never both:
    debt is only made when all lots are empty, and credit pays it first.
    """

    tenant_id: str
    granted: Femto
    topped_up: Femto
    version: int
    lots: list[Lot]
    changed: dict[UUID, Lot] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lots.sort()

    @property
    def balance(self) -> BalanceVersion:
        """The total."""
        return BalanceVersion(self.tenant_id, Femto(self.granted + self.topped_up), self.version)

    def charge(self, amount: Femto) -> tuple[Entry, ...]:
        """Draw on lots in order; what they do not cover becomes debt."""
        assert amount >= 0, f"a charge of {amount}"
        if amount == 0:
            return ()
        return self._book((*self._draw(amount), Entry(Account.REVENUE, amount)))

    def credit(self, lot_id: UUID, grant: Grant, at: datetime) -> tuple[Entry, ...]:
        """Open a lot, its beginning spent on debt."""
        debt_paid = Femto(min(grant.amount, max(0, -self.topped_up)))
        lot = Lot(lot_id, grant.account, grant.amount, Femto(grant.amount - debt_paid), at, grant.expires_at)
        self.changed[lot.id] = lot
        if lot.remaining:
            insort(self.lots, lot)
        return self._apply(
            (
                Entry(lot.account, lot.remaining, lot.id),
                Entry(Account.TOPPED_UP, debt_paid),
                Entry(SOURCE_OF[lot.account], Femto(-grant.amount)),
            )
        )

    def expire(self, at: datetime) -> tuple[Entry, ...]:
        """Take back what remains in lots that have ended by ``at``."""
        ended = [lot for lot in self.lots if lot.expires_at is not None and lot.expires_at <= at]
        self.lots = [lot for lot in self.lots if lot not in ended]
        entries = []
        for lot in ended:
            self.changed[lot.id] = replace(lot, remaining=Femto(0))
            entries.append(Entry(lot.account, Femto(-lot.remaining), lot.id))
            entries.append(Entry(SOURCE_OF[lot.account], lot.remaining))
        return self._apply(entries)

    def _draw(self, amount: Femto) -> Iterator[Entry]:
        owed = int(amount)
        while owed and self.lots:
            lot = self.lots[0]
            part = min(owed, lot.remaining)
            owed -= part
            left = lot.less(Femto(part))
            self.changed[lot.id] = left
            self.lots[:1] = [left] if left.remaining else []
            yield Entry(lot.account, Femto(-part), lot.id)
        if owed:
            yield Entry(Account.TOPPED_UP, Femto(-owed))

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

    def _apply(self, entries: Iterable[Entry]) -> tuple[Entry, ...]:
        return self._book(tuple(net(entries)))

    def _book(self, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        """Change the balances by entries of which no two are on the same account and lot."""
        for account, amount, _ in entries:
            if account is Account.GRANTED:
                self.granted = Femto(self.granted + amount)
            elif account is Account.TOPPED_UP:
                self.topped_up = Femto(self.topped_up + amount)
        return entries
