"""Holds and what becomes of them, as Python sees it; hold.lua has their form in Valkey."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from billing.money import Femto
from billing.settlement.event import UsageEvent
from gateway.admission.quota import NO_QUOTA, Quota

LIMB: Final = 10**9
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Hold:
    """A reservation that stands. ``admitted_at`` is Valkey's TIME, the only clock that rates anything.

    Attributes:
        quota: what is left of the tightest limits.
        strained: ids of soft budgets that this request may pass, or that are passed.
        alerts: those of them that were not before, in their period.
        gives_back: whether some limit does not count the tokens that prefill finds in the cache.
        parts: what a release has to name if a wipe takes the hold (hold.lua).
    """

    request_id: UUID
    tenant_id: str
    amount: Femto
    admitted_at: datetime
    quota: Quota = NO_QUOTA
    strained: tuple[str, ...] = ()
    alerts: tuple[str, ...] = ()
    gives_back: bool = False
    parts: str = ""


@dataclass(frozen=True, slots=True)
class Spent:
    """What a request came to: limits and budgets take it in the place of what was reserved."""

    charge: Femto
    rated_at: datetime
    input_tokens: int
    cached_tokens: int
    output_tokens: int

    @property
    def words(self) -> tuple[int, ...]:
        """For release.lua."""
        tokens = (self.input_tokens, self.cached_tokens, self.output_tokens)
        return (*limbs(self.charge), microseconds(self.rated_at), *tokens)


def spent_by(event: UsageEvent) -> Spent:
    """What an event takes of limits and budgets in the place of what its request reserved."""
    usage = event.usage
    cached_tokens = usage.cache_hit + usage.cache_owed
    return Spent(event.charge.amount, event.rated_at, usage.prompt, cached_tokens, usage.output)


NOTHING_SPENT: Final = Spent(Femto(0), EPOCH, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Held:
    """One tenant's rows as Valkey has them: for audits and tests."""

    balance: Femto | None
    version: int
    held: Femto
    holds: dict[str, Femto]
    leases: frozenset[str]


def limbs(amount: int) -> tuple[int, int]:
    """Split femto-units into micro-units (any sign) and a rest below 10^9: exact in Lua's doubles."""
    return divmod(amount, LIMB)


def amount_of(hi: str, lo: str) -> Femto:
    """Join what `limbs` split."""
    assert 0 <= int(lo) < LIMB, f"limbs {hi} and {lo} are not normalised"
    return Femto(int(hi) * LIMB + int(lo))


def microseconds(instant: datetime) -> int:
    """Since the epoch, exactly; an instant of Valkey's TIME comes back as it was."""
    return (instant - EPOCH) // _MICROSECOND


def instant_at(time_us: str) -> datetime:
    """The other way round."""
    return EPOCH + timedelta(microseconds=int(time_us))
