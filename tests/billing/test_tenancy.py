from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from billing.errors import KeyMissing, StoreRefused, TenantExists, TenantMissing
from billing.tenancy.keys import checksum_ok
from billing.tenancy.service import Tenancy

AT = datetime(2026, 11, 30, 9, 30, tzinfo=UTC)


async def test_a_tenant_is_found_by_name_and_by_id(house: Any):
    made = await house.tenancy.create_tenant("found twice", currency="CNY", at=AT)
    assert made.id.startswith("ten_")
    assert len(made.id) == 4 + 24
    assert await house.tenancy.tenant("found twice") == made
    assert await house.tenancy.tenant(made.id) == made
    assert made in await house.tenancy.tenants()


async def test_a_name_is_taken_once(house: Any):
    await house.tenancy.create_tenant("taken", at=AT)
    with pytest.raises(TenantExists):
        await house.tenancy.create_tenant("taken", at=AT)


async def test_an_unknown_tenant_is_missing_everywhere(house: Any):
    with pytest.raises(TenantMissing):
        await house.tenancy.tenant("nobody")
    with pytest.raises(TenantMissing):
        await house.tenancy.create_key("ten_nobody", "k", AT)
    with pytest.raises(TenantMissing):
        await house.ledger.balance("ten_nobody")


@pytest.mark.parametrize(
    ("name", "currency"), [("", "USD"), ("nul \0", "USD"), ("euro", "€"), ("long", "USDT")]
)
async def test_a_tenant_without_a_name_or_a_currency_is_refused(house: Any, name: str, currency: str):
    with pytest.raises(StoreRefused):
        await house.tenancy.create_tenant(name, currency, at=AT)


async def test_a_key_is_found_by_its_digest_and_its_secret_is_nowhere(house: Any):
    issued = await house.tenancy.create_key(house.tenant_id, "laptop", AT)
    assert checksum_ok(issued.secret)
    grant = await house.tenancy.find_key(house.tenancy.digest(issued.secret))
    assert (grant.key_id, grant.tenant_id, grant.currency) == (issued.key.id, house.tenant_id, "USD")
    assert (grant.name, grant.revoked_at) == ("laptop", None)
    assert issued.secret not in repr(issued)
    assert issued.secret.startswith(issued.key.prefix)
    async with house.database.transaction() as connection:
        rows = (
            (await connection.execute(text("SELECT row_to_json(api_key)::text FROM api_key"))).scalars().all()
        )
    assert rows
    assert not any(issued.secret[12:] in row for row in rows)


async def test_another_pepper_or_another_secret_finds_nothing(house: Any):
    issued = await house.tenancy.create_key(house.tenant_id, "laptop", AT)
    assert await house.tenancy.find_key(Tenancy(house.database, b"other").digest(issued.secret)) is None
    assert await house.tenancy.find_key(house.tenancy.digest(issued.secret[:-1])) is None


async def test_a_revoked_key_is_still_known_and_keeps_its_first_instant(house: Any):
    issued = await house.tenancy.create_key(house.tenant_id, "laptop", AT)
    await house.tenancy.revoke_key(issued.key.id, AT)
    again = await house.tenancy.revoke_key(issued.key.id, AT + timedelta(hours=1))
    assert again.revoked_at == AT
    assert (await house.tenancy.find_key(house.tenancy.digest(issued.secret))).revoked_at == AT
    assert again in await house.tenancy.keys(house.tenant_id)
    assert again in await house.tenancy.keys()


async def test_revoking_an_unknown_key_says_so(house: Any):
    with pytest.raises(KeyMissing):
        await house.tenancy.revoke_key("key_nobody", AT)
