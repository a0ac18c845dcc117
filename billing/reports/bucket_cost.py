"""What a total comes to bucket by bucket: charges are kept whole, their price rows say the rest."""

from dataclasses import dataclass
from typing import cast

from billing.errors import ChargeUnexplained
from billing.money import Femto
from billing.pricing.book import PriceBook
from billing.pricing.rates import Rates
from billing.reports.usage_total import UsageTotal
from billing.usage import BUCKETS, Bucket, Tier


@dataclass(frozen=True, slots=True)
class BucketCost:
    """Tokens of one bucket; ``rate`` in femto-units a token, ``cost`` their product."""

    bucket: Bucket
    tokens: int
    rate: int

    @property
    def cost(self) -> Femto:
        """What they came to."""
        return Femto(self.tokens * self.rate)


class PriceRows:
    """Published price rows by their id."""

    def __init__(self, book: PriceBook) -> None:
        self._rows = {row.id: row for row in book.rows}

    def buckets(self, total: UsageTotal) -> list[BucketCost]:
        """The buckets of a total that hold tokens; their costs add up to its charge.

        Args:
            total: of a group by price row, window and tier at least.

        Raises:
            ChargeUnexplained: the row, its window or its tier is not there, or the sum is another.
        """
        row_id, window, tier = (str(total.group[one]) for one in ("price_row", "window", "tier"))
        rates = self._rates(row_id, window, tier)
        found = [
            BucketCost(bucket, tokens, rates.of_bucket(bucket))
            for bucket in BUCKETS
            if (tokens := getattr(total, bucket))
        ]
        explained = sum(each.cost for each in found)
        if explained != total.charge:
            raise ChargeUnexplained(
                row_id, window, tier, f"explains {explained} femto-units of {total.charge} that were charged"
            )
        return found

    def _rates(self, row_id: str, window: str, tier: str) -> Rates:
        row = self._rows.get(row_id)
        if row is None:
            raise ChargeUnexplained(row_id, window, tier, "there is no such price row")
        of_window = row.named_rates.get(window)
        of_tier = None if of_window is None else of_window.of(cast("Tier", tier))
        if of_tier is None:
            raise ChargeUnexplained(row_id, window, tier, "the row has no rates for these")
        return of_tier
