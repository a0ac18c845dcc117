"""What documents consist of: usage by bucket at a rate, lines in cents, tax by rate."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from billing.errors import UsageUnexplained
from billing.invoicing.rounding import half_up, percent_of
from billing.money import Femto
from billing.pricing.book import PriceRow
from billing.pricing.rates import Rates
from billing.usage import BUCKETS, Bucket, Tier

Section = Literal["period", "late"]
AdjustmentKind = Literal["prepaid", "correction"]
LineKind = Literal[
    "usage", "late", "prepaid", "correction", "discount", "fee", "commitment", "coupon", "top_up"
]

SECTIONS: Final[tuple[Section, ...]] = ("period", "late")

_SAFE: Final = 2**53 - 1  # JSON's integers end here
Count = Annotated[int, Meta(ge=0, le=_SAFE)]
WholeCents = Annotated[int, Meta(ge=-_SAFE, le=_SAFE)]
FemtoText = Annotated[str, Meta(pattern=r"^(0|[1-9][0-9]{0,37})$")]
SignedFemtoText = Annotated[str, Meta(pattern=r"^(0|-?[1-9][0-9]{0,37})$")]

_NAMES: Final[Mapping[Bucket, str]] = {
    "cache_hit": "input, cache hit",
    "cache_owed": "input, promised to be cached",
    "cache_write": "input, cache write",
    "cache_miss": "input, cache miss",
    "output": "output",
}


class Side(NamedTuple):
    """What usage is added up by. The price row's model and currency are those of the usage."""

    section: Section
    model: str
    price_row_id: str
    window: str
    tier: Tier


@dataclass(slots=True)
class Sum:
    """Requests of one side, added up. ``charge`` is what was settled for them."""

    requests: int = 0
    cache_hit: int = 0
    cache_owed: int = 0
    cache_write: int = 0
    cache_miss: int = 0
    output: int = 0
    charge: int = 0

    def add(self, other: "Sum", sign: int = 1) -> None:
        """Take in more; or, with -1, take out again what was in."""
        for name in ("requests", *BUCKETS, "charge"):
            setattr(self, name, getattr(self, name) + sign * getattr(other, name))


class UsageRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tokens of one bucket at one rate. ``requests`` are all of its side, the same in each bucket."""

    section: Section
    model: str
    price_row: str
    window: str
    tier: Tier
    bucket: Bucket
    requests: Count
    tokens: Count
    rate_femto: FemtoText
    amount_femto: FemtoText

    @property
    def amount(self) -> Femto:
        """What it comes to."""
        return Femto(int(self.amount_femto))

    @property
    def text(self) -> str:
        """As people read it."""
        hours = [] if self.window == "standard" else [self.window]
        tier = [] if self.tier == "standard" else [self.tier]
        late = ["earlier periods"] if self.section == "late" else []
        return " · ".join((self.model, *hours, *tier, _NAMES[self.bucket], *late))


class Adjustment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What usage is more or less by, before tax: drawn from credit when it was used, or corrected since."""

    kind: AdjustmentKind
    amount_femto: SignedFemtoText

    @property
    def amount(self) -> Femto:
        """Below zero: less is due."""
        return Femto(int(self.amount_femto))


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cents, before tax at ``tax_rate``. ``coupon``: by which code; ``credits``: which line, from 0."""

    kind: LineKind
    text: str
    cents: WholeCents
    tax_rate: str
    coupon: str | None = None
    credits: Count | None = None


class Tax(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tax of all lines of one rate, rounded half up once."""

    rate: str
    basis_cents: WholeCents
    tax_cents: WholeCents


class Cache(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tokens by bucket; what they cost, and would have without a cache, hits and owed ones as misses.

    ``broken_promises_femto`` is what we lost by billing owed tokens, which were computed again, as hits.
    """

    hit_tokens: Count
    owed_tokens: Count
    write_tokens: Count
    miss_tokens: Count
    output_tokens: Count
    charged_femto: FemtoText
    uncached_femto: FemtoText
    saved_femto: FemtoText
    broken_promises_femto: FemtoText


def usage_rows(sums: Mapping[Side, Sum], prices: Mapping[str, PriceRow]) -> tuple[UsageRow, ...]:
    """A row for each bucket that has tokens, in the one order that documents have.

    Raises:
        UsageUnexplained: a price row that is not there, has no such window or tier, or gives another sum.
    """
    rows: list[UsageRow] = []
    for side in sorted(sums, key=lambda side: (SECTIONS.index(side.section), *side[1:])):
        total, rates = sums[side], rates_of(side, prices)
        for bucket in BUCKETS:
            tokens, rate = getattr(total, bucket), rates.of_bucket(bucket)
            if tokens:
                row = UsageRow(*side, bucket, total.requests, tokens, str(rate), str(tokens * rate))
                rows.append(row)
        rated = sum(getattr(total, bucket) * rates.of_bucket(bucket) for bucket in BUCKETS)
        if rated != total.charge:
            raise UsageUnexplained(
                f"{side.price_row_id} ({side.window}, {side.tier}) gives {rated}, settled were {total.charge}"
            )
    return tuple(rows)


def rates_of(side: Side, prices: Mapping[str, PriceRow]) -> Rates:
    """What rated a side; raises UsageUnexplained."""
    row = prices.get(side.price_row_id)
    if row is None:
        raise UsageUnexplained(f"there is no price row {side.price_row_id}")
    offered = row.named_rates.get(side.window)
    rates = None if offered is None else offered.of(side.tier)
    if rates is None or row.model != side.model:
        raise UsageUnexplained(f"{row.id} does not price {side.model} in {side.window}, tier {side.tier}")
    return rates


def cache_of(sums: Mapping[Side, Sum], prices: Mapping[str, PriceRow]) -> Cache:
    """The cache section; raises UsageUnexplained where `usage_rows` does."""
    total, uncached, broken = Sum(), 0, 0
    for side, each in sums.items():
        rates = rates_of(side, prices)
        total.add(each)
        uncached += (each.cache_hit + each.cache_owed) * (rates.miss - rates.hit)
        broken += each.cache_owed * (rates.miss - rates.hit)
    return Cache(
        hit_tokens=total.cache_hit,
        owed_tokens=total.cache_owed,
        write_tokens=total.cache_write,
        miss_tokens=total.cache_miss,
        output_tokens=total.output,
        charged_femto=str(total.charge),
        uncached_femto=str(total.charge + uncached),
        saved_femto=str(uncached),
        broken_promises_femto=str(broken),
    )


def taxes(lines: Sequence[Line]) -> tuple[Tax, ...]:
    """Tax by rate, lowest rate first, of each rate that has a basis."""
    basis: dict[str, int] = {}
    for line in lines:
        basis[line.tax_rate] = basis.get(line.tax_rate, 0) + line.cents
    return tuple(
        Tax(rate, cents, tax_on(cents, rate))
        for rate, cents in sorted(basis.items(), key=lambda one: percent_of(one[0]))
        if cents
    )


def tax_on(cents: int, rate: str) -> int:
    """Tax at a percentage, half up."""
    return half_up(cents * percent_of(rate), 1_000_000)


def total_of(lines: Iterable[Line], tax: Iterable[Tax]) -> int:
    """Cents, tax included."""
    return sum(line.cents for line in lines) + sum(each.tax_cents for each in tax)
