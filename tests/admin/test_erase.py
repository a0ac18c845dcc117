"""A tenant out of books, Valkey and prefix store: nothing runs, nothing is left, cut off it is repeated."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from admin import clock
from admin.erase import House, erase
from billing.db.transaction import Database
from billing.errors import ErasureRefused, TenantMissing
from billing.ledger.credit import Grant
from billing.ledger.service import Ledger
from billing.lifecycle.service import Lifecycle
from billing.money import Femto
from billing.tenancy.service import Tenancy
from engine.store.directory import PrefixStore
from engine.store.namespace import Namespace
from gateway.admission.admit import Admission
from gateway.kept import Ask, Kept, KeptAnswer
from gateway.valkey import Valkey
from gateway.vault import Vault

HASHES = [bytes([index]) * 32 for index in range(1, 4)]


@dataclass
class Full:
    """Two tenants with stored prefixes and kept answers; the first is to go."""

    house: House
    admission: Admission
    store: PrefixStore
    tenants: tuple[str, str]
    tenancy: Tenancy

    def blocks(self, tenant_id: str) -> int:
        return sum(1 for path in self.house.store_dir.glob(f"*/{tenant_id}/??/*"))  # type: ignore[union-attr]  # it is there


@pytest.fixture
async def full(database_url: str, valkey_url: str, tmp_path: Path) -> AsyncIterator[Full]:
    database, valkey = Database(database_url), Valkey.connect(valkey_url)
    tenancy, ledger, admission = Tenancy(database, b"pepper"), Ledger(database), Admission(valkey)
    store = PrefixStore(tmp_path / "store", lambda: int(clock.now().timestamp()))
    store.describe(Namespace("ab" * 32, "ef" * 32, 64, {"vllm": "0.32.0"}))
    kept = Kept(valkey, Vault(b"deployment"), lease_s=30)
    tenants = []
    for name in ("ada", "bob"):
        tenant = await tenancy.create_tenant(f"{name}-{tmp_path.name}-{id(store)}", at=clock.now())
        granted = Grant(Femto(10**15), "granted", "trial", "test")
        await admission.project(await ledger.grant(tenant.id, granted, clock.now()))
        for block_hash in HASHES:
            store.namespace("ab" * 32, tenant.id).publish(block_hash, [memoryview(b"kv")], "chat")
        for keyed in (True, False):
            asked = Ask(tenant.id, bytes(32), b"", keyed=keyed, again=False)
            if keyed:
                await kept.claim(asked, "owner")
            else:
                await kept.give(asked, KeptAnswer(UUID(int=7), b"secret answer"))
        tenants.append(tenant.id)
    house = House(Lifecycle(database), valkey, kept, tmp_path / "store")
    yield Full(house, admission, store, (tenants[0], tenants[1]), tenancy)
    await valkey.close()
    await database.close()


async def rows(full: Full, tenant_id: str) -> list[str]:
    found: list[str] = await full.house.valkey.call("KEYS", f"kv:{{{tenant_id}}}:*")
    return sorted(row.split(":")[2] for row in found if ":undelivered:" in row or ":idempotency:" in row)


async def test_nothing_of_the_tenant_is_left_and_all_of_the_others(full: Full) -> None:
    gone, stays = full.tenants
    dropped = (await erase(full.house, gone, actor="ann", wait_s=5)).dropped
    assert (dropped["kept_answers"], dropped["prefix_blocks"]) == (2, 3)
    assert (await rows(full, gone), full.blocks(gone)) == ([], 0)
    assert (await rows(full, stays), full.blocks(stays)) == (["idempotency", "undelivered"], 3)
    tenant = await full.tenancy.tenant(gone)
    assert (tenant.name, tenant.erased_at is not None) == (gone, True)
    assert (await full.tenancy.tenant(stays)).suspension is None
    again = (await erase(full.house, gone, actor="ann", wait_s=5)).dropped
    assert set(again.values()) == {0}


async def test_a_request_in_flight_is_waited_for_and_one_that_goes_on_refuses(full: Full) -> None:
    gone, _ = full.tenants
    hold = await full.admission.admit(gone, Femto(5))
    with pytest.raises(ErasureRefused, match="1 requests still run"):
        await erase(full.house, gone, actor="ann", wait_s=0)
    assert (await full.tenancy.tenant(gone)).suspension is not None
    assert full.blocks(gone) == 3
    erasing: asyncio.Task[Any] = asyncio.create_task(erase(full.house, gone, actor="ann", wait_s=60))
    await asyncio.sleep(0.1)
    assert not erasing.done()
    await full.admission.void(hold)
    assert (await erasing).tenant_id == gone
    assert full.blocks(gone) == 0


async def test_nobody_is_not_erased(full: Full) -> None:
    with pytest.raises(TenantMissing):
        await erase(full.house, "ten_nobody", actor="ann", wait_s=0)
