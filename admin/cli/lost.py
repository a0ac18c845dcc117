"""What broken promises cost the house: billed so far and at most to come, by the books of a running stack."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from admin import clock
from admin.cli import session
from admin.stack.errors import StackError
from billing.errors import BillingError
from billing.money import Femto, decimal_of
from billing.pricing.book import PriceBook
from billing.reports.usage_row import OwedRow


@dataclass(frozen=True, slots=True)
class Lost:
    """What the books say of broken promises.

    ``a_token`` is what one more owed token costs now, by currency; ``billed`` what owed tokens cost so far.
    """

    model: str
    a_token: Mapping[str, Femto]
    billed: Sequence[OwedRow]

    def of(self, tokens: int) -> list[dict[str, str]]:
        """What so many tokens cost that are computed as misses and billed as hits, once, by currency."""
        return [
            {
                "model": self.model,
                "currency": currency,
                "amount": decimal_of(Femto(tokens * rate)),
            }
            for currency, rate in self.a_token.items()
        ]


def lost_by(data_dir: Path) -> Lost | None:
    """None when no stack runs here: then nobody knows the books."""

    async def work() -> tuple[PriceBook, str, list[OwedRow]]:
        async with session.books(data_dir) as books:
            return await books.prices.book(), books.settings.served_name, await books.reports.owed()

    try:
        book, model, billed = session.run(work())
    except (StackError, BillingError):
        return None
    at, a_token = clock.now(), dict[str, Femto]()
    for currency in sorted({r.currency for r in book.rows if r.model == model and r.effective_from <= at}):
        _, rates = book.row(model, currency, at).rates_at(at)
        a_token[currency] = Femto(rates.miss - rates.hit)
    return Lost(model, a_token, billed)
