"""Holds against a real Valkey: all or nothing, released once, never more than the balance."""

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from billing.ledger.balance import BalanceVersion
from billing.money import Femto
from billing.request_id import instant_of, mint
from gateway.admission.admit import ADMIT, Admission
from gateway.admission.hold import Hold, limbs
from gateway.admission.leases import Leases
from gateway.refusal import BalanceHeld, BalanceInsufficient, ProjectionMissing
from gateway.valkey import Valkey
from tests.gateway.conftest import until

TENANT = "ten_a"
USD = 10**15
amounts = st.integers(min_value=0, max_value=10**24)


@pytest.fixture
def admission(valkey: Valkey) -> Admission:
    return Admission(valkey, lease_s=30.0)


def balance(amount: int, version: int = 1, tenant: str = TENANT) -> BalanceVersion:
    return BalanceVersion(tenant, Femto(amount), version)


async def test_an_unknown_balance_is_asked_for_before_anything_is_held(admission: Admission) -> None:
    with pytest.raises(ProjectionMissing):
        await admission.admit(TENANT, Femto(0))
    assert (await admission.held(TENANT)).holds == {}


async def test_a_hold_of_exactly_the_balance_is_admitted_and_one_femto_more_is_not(
    admission: Admission,
) -> None:
    await admission.project(balance(5 * USD + 7))
    with pytest.raises(BalanceInsufficient):
        await admission.admit(TENANT, Femto(5 * USD + 8))
    await admission.admit(TENANT, Femto(5 * USD + 7))


async def test_what_requests_in_flight_hold_is_refused_as_held_and_comes_back(admission: Admission) -> None:
    await admission.project(balance(USD))
    hold = await admission.admit(TENANT, Femto(USD))
    with pytest.raises(BalanceHeld) as held:
        await admission.admit(TENANT, Femto(1))
    assert 0 < held.value.retry_after_s <= 60
    assert await admission.void(hold)
    await admission.admit(TENANT, Femto(1))


async def test_a_tenant_in_debt_is_refused_even_a_free_request(admission: Admission) -> None:
    await admission.project(balance(-1))
    with pytest.raises(BalanceInsufficient):
        await admission.admit(TENANT, Femto(0))


async def test_a_hold_is_dropped_once_however_often_it_is_released(admission: Admission) -> None:
    await admission.project(balance(10 * USD))
    first, second = [await admission.admit(TENANT, Femto(3 * USD + 1)) for _ in range(2)]
    assert await admission.release(first, balance(9 * USD, 2))
    assert not await admission.release(first, balance(9 * USD, 2))
    assert not await admission.void(first)
    rows = await admission.held(TENANT)
    assert rows.held == second.amount
    assert rows.holds == {str(second.request_id): second.amount}
    assert await admission.check_integrity(TENANT) == []


async def test_an_older_balance_never_replaces_a_newer_one(admission: Admission) -> None:
    await admission.project(balance(7, 3))
    await admission.project(balance(9, 2))
    rows = await admission.held(TENANT)
    assert (rows.balance, rows.version) == (7, 3)


async def test_a_release_after_a_wipe_brings_the_balance_back_and_no_negative_hold(
    admission: Admission, valkey: Valkey
) -> None:
    await admission.project(balance(USD, 4))
    hold = await admission.admit(TENANT, Femto(5))
    await valkey.call("FLUSHALL")
    assert not await admission.release(hold, balance(USD - 5, 5))
    rows = await admission.held(TENANT)
    assert (rows.balance, rows.version, rows.held) == (USD - 5, 5, 0)


async def test_a_forgotten_balance_leaves_its_holds(admission: Admission) -> None:
    await admission.project(balance(USD, 4))
    hold = await admission.admit(TENANT, Femto(5))
    await admission.forget(TENANT)
    with pytest.raises(ProjectionMissing):
        await admission.admit(TENANT, Femto(1))
    assert (await admission.held(TENANT)).holds == {str(hold.request_id): 5}
    assert await admission.check_integrity(TENANT) == []


async def test_tenants_do_not_see_each_others_balances(admission: Admission) -> None:
    await admission.project(balance(USD, tenant="ten_rich"))
    await admission.project(balance(0, tenant="ten_poor"))
    await admission.admit("ten_rich", Femto(USD))
    with pytest.raises(BalanceInsufficient):
        await admission.admit("ten_poor", Femto(1))
    assert await admission.tenants() == ["ten_poor", "ten_rich"]


async def test_the_request_id_is_made_of_valkeys_time_as_billing_makes_it(valkey: Valkey) -> None:
    await Admission(valkey).project(balance(USD))
    random = bytes.fromhex("ffeeddccbbaa99887766")
    keys = (f"kv:{{{TENANT}}}:balance", f"kv:{{{TENANT}}}:holds", f"kv:{{{TENANT}}}:leases")
    _, request_id, time_us, *_ = await valkey.run(ADMIT, keys, (0, 0, random.hex(), 1000, 0, 0, 0))
    admitted_at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(time_us))
    assert UUID(request_id) == mint(admitted_at, random)


async def test_admission_tells_the_instant_that_its_id_carries(admission: Admission, valkey: Valkey) -> None:
    await admission.project(balance(USD))
    hold = await admission.admit(TENANT, Femto(1))
    assert timedelta(0) <= hold.admitted_at - instant_of(hold.request_id) < timedelta(milliseconds=1)
    seconds, _ = await valkey.call("TIME")
    assert abs(hold.admitted_at.timestamp() - int(seconds)) < 2


async def test_an_expired_hold_keeps_counting_until_it_is_released(valkey: Valkey) -> None:
    brief = Admission(valkey, lease_s=0.0)
    await brief.project(balance(USD))
    hold = await brief.admit(TENANT, Femto(USD))
    assert list(await brief.expired(TENANT)) == [hold.request_id]
    with pytest.raises(BalanceHeld):
        await brief.admit(TENANT, Femto(1))


async def test_renewing_keeps_own_leases_and_brings_no_released_hold_back(valkey: Valkey) -> None:
    brief, lasting = Admission(valkey, lease_s=0.0), Admission(valkey, lease_s=30.0)
    await brief.project(balance(USD))
    kept, gone = [await brief.admit(TENANT, Femto(5)) for _ in range(2)]
    leases = Leases(lasting, 10.0)
    leases.keep(kept)
    leases.keep(gone)
    await brief.void(gone)
    await leases.renew()
    assert await brief.expired(TENANT) == {}
    assert (await brief.held(TENANT)).leases == {str(kept.request_id)}
    leases.drop(kept)
    leases.drop(gone)
    assert len(leases) == 0


async def test_the_leases_task_renews_by_itself(valkey: Valkey) -> None:
    brief = Admission(valkey, lease_s=0.0)
    await brief.project(balance(USD))
    hold = await brief.admit(TENANT, Femto(5))
    leases = Leases(Admission(valkey, lease_s=30.0), 0.01)
    leases.keep(hold)
    leases.start()

    async def renewed() -> bool:
        return not await brief.expired(TENANT)

    await until(renewed)
    await leases.close()


@given(amount=st.integers(min_value=-(10**24), max_value=10**24))
def test_limbs_carry_an_amount_exactly_in_doubles(amount: int) -> None:
    hi, lo = limbs(amount)
    assert 0 <= lo < 10**9
    assert int(float(hi)) * 10**9 + int(float(lo)) == amount


@given(total=amounts, asked=st.lists(amounts, max_size=8), released=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_concurrent_holds_never_overspend_and_conserve_what_is_held(
    valkey_url: str, total: int, asked: list[int], released: st.DataObject
) -> None:
    async def admit_all() -> None:
        valkey = Valkey.connect(valkey_url)
        admission, tenant = Admission(valkey), f"ten_{uuid4().hex[:8]}"
        await admission.project(balance(total, tenant=tenant))
        replies = await asyncio.gather(
            *(admission.admit(tenant, Femto(a)) for a in asked), return_exceptions=True
        )
        holds = [reply for reply in replies if isinstance(reply, Hold)]
        assert sum(hold.amount for hold in holds) <= total
        free = total
        for amount, reply in zip(asked, replies, strict=True):  # a pipeline runs in order
            assert isinstance(reply, Hold) == (amount <= free)
            free -= amount if isinstance(reply, Hold) else 0
        for hold in released.draw(st.permutations(holds)):
            assert await admission.check_integrity(tenant) == []
            assert await admission.void(hold)
        assert (await admission.held(tenant)).held == 0
        await valkey.close()
        await asyncio.sleep(0)  # one tick in which its sockets close

    asyncio.run(admit_all())
