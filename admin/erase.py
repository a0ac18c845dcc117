"""Erasing a tenant from all there is: books, Valkey, prefix store. Cut off anywhere it can be repeated."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from admin import clock
from billing.errors import ErasureRefused
from billing.lifecycle.service import Lifecycle
from engine.store import operate
from gateway.admission.admit import Admission
from gateway.kept import Kept
from gateway.refusal import ValkeyUnavailable
from gateway.snapshot import announce_change
from gateway.valkey import Valkey

AGAIN_S: Final = 0.25
UNTOLD: Final = timedelta(seconds=2)  # gateways that were not told ask again within this


@dataclass(frozen=True, slots=True)
class House:
    """Where something of a tenant may be; ``store_dir`` None: there is no prefix store."""

    lifecycle: Lifecycle
    valkey: Valkey
    kept: Kept
    store_dir: Path | None


@dataclass(frozen=True, slots=True)
class Gone:
    """What was dropped, by what it was."""

    tenant_id: str
    dropped: Mapping[str, int]


async def erase(house: House, tenant_id: str, *, actor: str, wait_s: float) -> Gone:
    """Suspend a tenant, wait for its requests in flight, and erase it.

    Args:
        house: all the places.
        tenant_id: whose.
        actor: for the audit log.
        wait_s: for how long requests may go on.

    Raises:
        TenantMissing: no tenant has this id.
        ErasureRefused: requests were still running, or its audit log does not verify; it is suspended then.
        ValkeyUnavailable: nobody knows whether requests run; it is suspended then.
        OSError: of the prefix store something could not be removed; the books are erased then.
    """
    await house.lifecycle.suspend(tenant_id, "to be erased", clock.now(), actor=actor)
    with suppress(ValkeyUnavailable):
        await announce_change(house.valkey, tenant_id)
    await _until_nothing_runs(house, tenant_id, wait_s)
    erased = await house.lifecycle.erase(tenant_id, clock.now(), actor=actor)
    answers = await house.kept.forget_tenant(tenant_id)
    blocks = 0
    if house.store_dir is not None:
        blocks = (await asyncio.to_thread(operate.erase, house.store_dir, tenant_id)).blocks
    return Gone(tenant_id, {**erased.dropped, "kept_answers": answers, "prefix_blocks": blocks})


async def _until_nothing_runs(house: House, tenant_id: str, wait_s: float) -> None:
    """Gateways may admit until they know of the suspension; a hold stands as long as a request runs."""
    admission, loop = Admission(house.valkey), asyncio.get_running_loop()
    settled_s = loop.time() + UNTOLD.total_seconds()
    ends_s = settled_s + wait_s
    while True:
        holds = len((await admission.held(tenant_id)).holds)
        if not holds and loop.time() >= settled_s:
            return
        if holds and loop.time() >= ends_s:
            raise ErasureRefused(
                tenant_id, f"{holds} requests still run; it is suspended, so repeat it later"
            )
        await asyncio.sleep(AGAIN_S)
