"""What a total comes to bucket by bucket: charges are kept whole, their price rows say the rest."""

from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

from billing.errors import ChargeUnexplained
from billing.money import Femto
from billing.pricing.book import PriceBook, PriceRow
from billing.pricing.rates import Rates
from billing.reports.usage_total import UsageTotal
from billing.usage import Tier

Bucket = Literal["cache_hit", "cache_owed", "cache_write", "cache_miss", "output"]

BUCKETS: Final[tuple[Bucket, ...]] = get_args(Bucket)


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
            BucketCost(bucket, tokens, rate_of(rates, bucket))
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
        of_window = named_rates(row).get(window)
        of_tier = None if of_window is None else of_window.of(cast("Tier", tier))
        if of_tier is None:
            raise ChargeUnexplained(row_id, window, tier, "the row has no rates for these")
        return of_tier


def named_rates(row: PriceRow) -> dict[str, Rates]:
    """The rates of a row by the name of their window; a name stands for one set of rates."""
    return {window.name: window.rates for window in row.windows} | {row.standard_name: row.standard}


def rate_of(rates: Rates, bucket: Bucket) -> int:
    """Femto-units for a token of a bucket."""
    match bucket:
        case "cache_hit" | "cache_owed":
            return rates.hit
        case "cache_write":
            return rates.write or 0
        case "cache_miss":
            return rates.miss
        case "output":
            return rates.output
