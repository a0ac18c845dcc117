"""What a token of each bucket costs."""

from dataclasses import dataclass
from typing import Final, Self

from billing.usage import Bucket, Tier

TIERS: Final[tuple[Tier, ...]] = ("standard", "flex", "batch")


@dataclass(frozen=True, slots=True)
class Rates:
    """Femto-units per token. Owed tokens cost what hits cost; ``write`` is None where it is not priced.

    ``flex`` and ``batch`` are the full rates of those tiers, where they are offered.
    """

    hit: int
    miss: int
    output: int
    write: int | None = None
    flex: Self | None = None
    batch: Self | None = None

    def of(self, tier: Tier) -> "Rates | None":
        """The rates of a tier, None where it is not offered."""
        match tier:
            case "standard":
                return self
            case "flex":
                return self.flex
            case "batch":
                return self.batch

    def of_bucket(self, bucket: Bucket) -> int:
        """Femto-units for a token of a bucket."""
        match bucket:
            case "cache_hit" | "cache_owed":
                return self.hit
            case "cache_write":
                return self.write or 0
            case "cache_miss":
                return self.miss
            case "output":
                return self.output

    @property
    def offered(self) -> dict[Tier, "Rates"]:
        """The rates of each tier that is offered, of the standard one first."""
        return {tier: rates for tier in TIERS if (rates := self.of(tier)) is not None}

    @property
    def dearest_input(self) -> int:
        """The most that an input token can cost."""
        return max(self.hit, self.miss, self.write or 0)
