"""Usage for Stripe's meters: a sum for each tenant, hour and bucket, sent once, named by the three."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from billing.db.access import SETTLER
from billing.db.transaction import Database
from billing.interval import Interval
from billing.payments import repository
from billing.payments.order import MeterOrder, order_of
from billing.payments.outbox import put
from billing.reports.service import Reports
from billing.reports.usage_total import UsageQuestion, UsageTotal

BUCKETS: Final = ("cache_hit", "cache_owed", "cache_write", "cache_miss", "output")
HOUR: Final = timedelta(hours=1)
SETTLED_AFTER: Final = HOUR  # of an hour's end: what is rated in it later is a finding

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Metered:
    """How many sums are to be sent; ``differing`` names orders whose hour has another sum since."""

    ordered: int
    differing: Sequence[str]


class Metering:
    """Orders usage to be sent. Reasoning is a part of output, and no bucket of its own."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reports = Reports(database)

    async def order(self, interval: Interval, at: datetime) -> Metered:
        """Have the usage of whole hours that ended an hour ago sent, of tenants that Stripe knows.

        Again orders nothing twice. What Stripe refuses as too old stays among the failed orders.
        """
        since = _EPOCH + -(-(interval.since - _EPOCH) // HOUR) * HOUR
        until = _EPOCH + (min(interval.until, at - SETTLED_AFTER) - _EPOCH) // HOUR * HOUR
        if until <= since:
            return Metered(0, ())
        totals = await self._reports.totals(UsageQuestion(Interval(since, until), ("tenant", "hour")))
        ordered, differing = 0, []
        async with self._database.transaction(SETTLER) as connection:
            known = {one.tenant_id for one in await repository.select_customers(connection)}
            for tenant_id, key, usage in _sums(totals):
                if tenant_id not in known:
                    continue
                before = await repository.select_order(connection, order_of(tenant_id, key, usage, at).id)
                if before is None:
                    await put(connection, tenant_id, key, usage, at)
                    ordered += 1
                elif before.errand != usage:
                    differing.append(before.id)
        return Metered(ordered, differing)


def _sums(totals: Sequence[UsageTotal]) -> list[tuple[str, str, MeterOrder]]:
    """Tenant, key and order of every sum that is not zero."""
    sums = []
    for total in totals:
        hour = total.group["hour"]
        assert isinstance(hour, datetime)
        hour = hour.astimezone(UTC)
        for bucket in BUCKETS:
            tokens = getattr(total, bucket)
            if tokens:
                usage = MeterOrder(bucket, hour, tokens)
                sums.append((str(total.group["tenant"]), f"{hour:%Y%m%dT%H}-{bucket}", usage))
    return sums
