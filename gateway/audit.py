"""Looks at the receipt of each request once, when its workers' lines have had their time to come.

What the books have is graded; what they lack, though workers attest it, is named.
"""

from collections import Counter
from datetime import datetime, timedelta

from billing.receipts.service import Receipts
from gateway.instant import ValkeyClock
from gateway.sweep import LATE_S
from gateway.telemetry import SweepTelemetry, log
from gateway.valkey import Valkey


class Audit:
    """Counts grades and names contradictions, of the requests admitted since this process began."""

    def __init__(
        self, valkey: Valkey, receipts: Receipts, telemetry: SweepTelemetry, late_s: float = LATE_S
    ) -> None:
        self._clock = ValkeyClock(valkey)
        self._receipts = receipts
        self._telemetry = telemetry
        self._late = timedelta(seconds=late_s)
        self._audited_to: datetime | None = None

    async def audit_once(self) -> Counter[str]:
        """Grade the requests whose time has come since the last call; returns how many have each grade.

        Raises:
            ValkeyUnavailable, StoreUnavailable: they are graded the next time.
        """
        until = await self._clock.now() - self._late
        since, counts = self._audited_to or until - self._late, Counter[str]()
        for receipt in await self._receipts.admitted_between(since, max(since, until)):
            counts[receipt.grade or "contradicted"] += 1
            if receipt.finding is not None:
                log.error("receipt_contradicted", request_id=str(receipt.request_id), finding=receipt.finding)
        for missing in await self._receipts.unbilled_between(since, max(since, until)):
            counts["unbilled"] += 1
            log.error("request_without_event", request_id=str(missing.request_id), workers=missing.workers)
        self._audited_to = max(since, until)
        for grade, count in counts.items():
            self._telemetry.receipts.labels(grade).inc(count)
        return counts
