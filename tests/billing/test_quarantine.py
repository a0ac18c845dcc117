"""Usage that cannot be: put aside once, shown, decided, never billed."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

from billing.receipts.service import Receipts
from billing.reports.service import Reports
from billing.reports.usage_row import UsageFilter
from billing.settlement.batch import Settlement
from billing.settlement.quarantine import Quarantined


async def test_usage_in_quarantine_is_shown_decided_and_not_billed(house: Any, settlement: Settlement):
    usage = Quarantined(house.request_id(1), house.tenant_id, "impossible \0 counts", '{"signed": 1}')
    await asyncio.gather(settlement.quarantine(usage), settlement.quarantine(replace(usage, reason="late")))
    reports = Reports(house.database)
    (row,) = await reports.quarantined(UsageFilter(tenant_id=house.tenant_id))
    assert (row.request_id, row.attestation) == (usage.request_id, usage.attestation)
    assert row.reason in {"impossible  counts", "late"}
    since = UsageFilter(tenant_id=house.tenant_id, since=row.recorded_at, until=row.recorded_at)
    assert await reports.quarantined(since) == []
    assert await settlement.settled([usage.request_id]) == {usage.request_id}
    assert await reports.usage(UsageFilter(tenant_id=house.tenant_id)) == []


async def test_what_a_journal_says_of_usage_in_quarantine_is_shown_with_it_and_not_missing(
    house: Any, settlement: Settlement
):
    nobody, event = "ten_of_nobody", house.event(2)
    (attested, *_), receipts = event.attestations, Receipts(house.database)
    await receipts.keep([attested])
    millisecond = (event.admitted_at, event.admitted_at + timedelta(milliseconds=1))
    assert event.request_id in {one.request_id for one in await receipts.unbilled_between(*millisecond)}
    await settlement.quarantine(Quarantined(event.request_id, nobody, "impossible", None))
    (row,) = await Reports(house.database).quarantined(UsageFilter(tenant_id=nobody))
    assert (row.tenant, row.attestation) == (nobody, attested.document)
    assert event.request_id not in {one.request_id for one in await receipts.unbilled_between(*millisecond)}
