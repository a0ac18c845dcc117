"""What a token of each bucket costs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rates:
    """Femto-units per token. Owed tokens cost what hits cost; ``write`` is None where it is not priced."""

    hit: int
    miss: int
    output: int
    write: int | None = None

    @property
    def dearest_input(self) -> int:
        """The most that an input token can cost."""
        return max(self.hit, self.miss, self.write or 0)
