import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from billing.db.access import OWNER, SETTLER
from billing.errors import MovementConflict, StoreRefused, TenantMissing
from billing.ledger.credit import Grant
from billing.money import Femto, femto_of

AT = datetime(2026, 11, 30, 9, 30, tzinfo=UTC)


def grant(amount: str, kind: Any = "granted", **more: Any) -> Grant:
    return Grant(femto_of(amount), kind, reason="trial", actor="ann", **more)


async def test_credit_adds_up_by_kind_and_each_transaction_is_a_version(house: Any):
    first = await house.ledger.grant(house.tenant_id, grant("25"), AT)
    second = await house.ledger.grant(house.tenant_id, grant("0.000000000000001", "topped_up"), AT)
    assert (first.version, second.version) == (1, 2)
    balance = await house.ledger.balance(house.tenant_id)
    assert (balance.granted, balance.topped_up) == (25 * 10**15, 1)
    assert balance.total == second.balance == 25 * 10**15 + 1
    assert (balance.currency, balance.version) == ("USD", 2)
    assert await house.ledger.check_integrity() == []


async def test_a_new_tenant_has_nothing(house: Any):
    balance = await house.ledger.balance(house.tenant_id)
    assert (balance.total, balance.version) == (0, 0)


async def test_credit_for_nobody_is_refused(house: Any):
    with pytest.raises(TenantMissing):
        await house.ledger.grant("ten_nobody", grant("1"), AT)


async def test_the_same_top_up_twice_is_credited_once(house: Any):
    await house.ledger.grant(house.tenant_id, grant("10"), AT)
    paid = grant("100", "topped_up", idempotency_key="pay-1")
    answers = await asyncio.gather(*(house.ledger.grant(house.tenant_id, paid, AT) for _ in range(4)))
    assert {answer.balance for answer in answers} == {110 * 10**15}
    assert (await house.ledger.balance(house.tenant_id)).version == 2


async def test_an_idempotency_key_names_one_grant(house: Any):
    await house.ledger.grant(house.tenant_id, grant("100", "topped_up", idempotency_key="pay-2"), AT)
    for other in (grant("101", "topped_up", idempotency_key="pay-2"), grant("100", idempotency_key="pay-2")):
        with pytest.raises(MovementConflict):
            await house.ledger.grant(house.tenant_id, other, AT)
    elsewhere = await house.other_tenant()
    await elsewhere.ledger.grant(elsewhere.tenant_id, grant("1", idempotency_key="pay-2"), AT)


async def test_concurrent_grants_lose_nothing(house: Any):
    await asyncio.gather(*(house.ledger.grant(house.tenant_id, grant("0.1"), AT) for _ in range(20)))
    balance = await house.ledger.balance(house.tenant_id)
    assert (balance.total, balance.version) == (2 * 10**15, 20)


async def test_ended_credit_is_taken_back_once_and_until_then_can_be_spent(house: Any):
    await house.ledger.grant(house.tenant_id, grant("5", expires_at=AT + timedelta(days=1)), AT)
    await house.ledger.grant(house.tenant_id, grant("7"), AT)
    assert await house.ledger.expire(AT + timedelta(hours=23)) == []
    (after,) = await house.ledger.expire(AT + timedelta(days=1))
    assert (after.tenant_id, after.balance) == (house.tenant_id, 7 * 10**15)
    assert await house.ledger.expire(AT + timedelta(days=1)) == []
    assert await house.ledger.check_integrity() == []


async def test_the_largest_amount_that_fits_is_kept_exactly(house: Any):
    most = Grant(Femto(10**38 - 1), "topped_up", "all of it", "ann")
    assert (await house.ledger.grant(house.tenant_id, most, AT)).balance == 10**38 - 1
    assert (await house.ledger.balance(house.tenant_id)).total == 10**38 - 1


async def test_postgres_takes_no_entries_that_leave_a_transaction_unbalanced(house: Any):
    posted = await house.ledger.grant(house.tenant_id, grant("5"), AT)
    one_side = text("""INSERT INTO ledger_entry (transaction_id, position, tenant_id, account, amount)
        SELECT id, 9, tenant_id, 'cash', 1 FROM ledger_transaction WHERE tenant_id = :tenant""")
    with pytest.raises(StoreRefused) as refused:
        async with house.database.transaction(SETTLER) as connection:
            await connection.execute(one_side, {"tenant": house.tenant_id})
    assert refused.value.constraint == "ck_ledger_entry_balanced"
    assert (await house.ledger.balance(house.tenant_id)).total == posted.balance


@pytest.mark.parametrize(
    "tampering",
    [
        "UPDATE ledger_entry SET amount = amount + 1 WHERE tenant_id = :tenant AND account = 'promotion'",
        "UPDATE balance SET granted = granted + 1 WHERE tenant_id = :tenant",
        "UPDATE balance SET topped_up = topped_up - 1 WHERE tenant_id = :tenant",
        "UPDATE credit_lot SET remaining = remaining - 1 WHERE tenant_id = :tenant",
        "UPDATE ledger_transaction SET kind = 'charge' WHERE tenant_id = :tenant",
        "UPDATE ledger_entry SET transaction_id = CAST(md5('') AS uuid) WHERE tenant_id = :tenant",
        "UPDATE ledger_entry SET lot_id = CAST(md5('') AS uuid) WHERE tenant_id = :tenant AND lot_id IS NULL",
    ],
)
async def test_tampering_with_the_ledger_is_found(house: Any, tampering: str):
    await house.ledger.grant(house.tenant_id, grant("5"), AT)
    assert await house.ledger.check_integrity() == []
    async with house.database.transaction(OWNER) as connection:
        await connection.execute(text(tampering), {"tenant": house.tenant_id})
    assert await house.ledger.check_integrity() != []
    async with house.database.transaction(OWNER) as connection:
        for table in ("ledger_entry", "credit_lot", "ledger_transaction", "balance"):
            await connection.execute(
                text(f"DELETE FROM {table} WHERE tenant_id = :tenant"),  # noqa: S608  a literal of this test
                {"tenant": house.tenant_id},
            )
