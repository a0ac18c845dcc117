"""Each settled request is graded once, after its workers had time to tell."""

from collections import Counter

import pytest

from billing.receipts.service import Receipts
from billing.request_id import mint
from gateway.audit import Audit
from gateway.instant import ValkeyClock
from gateway.telemetry import SweepTelemetry
from tests.attested import Signed, decode, prefill
from tests.gateway.conftest import House, until


async def ask(house: House) -> str:
    async with house.chat() as answer:
        await answer.read()
        return answer.headers["x-request-id"]


async def graded(audit: Audit, requests: int) -> Counter[str]:
    """Audit until so many have been graded."""
    counts: Counter[str] = Counter()

    async def enough() -> bool:
        counts.update(await audit.audit_once())
        return counts.total() >= requests

    await until(enough)
    assert await audit.audit_once() == {}
    return counts


async def test_each_request_is_graded_once_by_what_workers_attest(house: House) -> None:
    receipts, telemetry = Receipts(house.parts.database), SweepTelemetry()
    audit = Audit(house.parts.valkey, receipts, telemetry, late_s=0.0)
    assert await audit.audit_once() == {}
    whole, partly, contradicted = [await ask(house) for _ in range(3)]
    await house.settled(3)
    for request_id, output in ((whole, 6), (contradicted, 2)):
        line = decode(request_id, 1, 0, output, worker="decode-0", prompt_tokens=8)
        await receipts.keep([Signed(line)])
    expected = {"attested": 1, "gateway-counted": 1, "contradicted": 1}
    assert partly != whole
    assert await graded(audit, 3) == expected
    for grade, count in expected.items():
        assert f'kvitto_receipts_total{{grade="{grade}"}} {count}.0' in telemetry.render().decode()


async def test_a_request_that_workers_attest_and_nobody_billed_is_named_once(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    receipts, telemetry = Receipts(house.parts.database), SweepTelemetry()
    audit = Audit(house.parts.valkey, receipts, telemetry, late_s=0.0)
    assert await audit.audit_once() == {}
    billed, lost = await ask(house), str(mint(await ValkeyClock(house.parts.valkey).now(), bytes(10)))
    await house.settled()
    await receipts.keep([Signed(prefill(lost)), Signed(decode(lost, 1, 0, 6))])
    assert await graded(audit, 2) == {"gateway-counted": 1, "unbilled": 1}
    (said,) = [record.getMessage() for record in caplog.records if "request_without_event" in str(record.msg)]
    assert lost in said
    assert billed not in said


async def test_nothing_is_graded_before_its_lines_had_time_to_come(house: House) -> None:
    audit = Audit(house.parts.valkey, Receipts(house.parts.database), SweepTelemetry(), late_s=60.0)
    await ask(house)
    await house.settled()
    assert await audit.audit_once() == {}
