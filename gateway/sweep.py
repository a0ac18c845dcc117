"""What a dead process left: holds whose lease ran out are released, with their event's charge or with none.

A lost request that has an event was charged; only its release is missing. One that has none is voided, after
a trace of it is kept (`kv:lost`). Workers' journals, from which its tokens can be settled, come with issue 4;
until then what a killed gateway generated and did not settle is not billed.
"""

from dataclasses import dataclass
from uuid import UUID

from billing.ledger.balance import BalanceVersion
from billing.ledger.service import Ledger
from billing.settlement.batch import Settlement
from gateway.admission.admit import Admission
from gateway.telemetry import log
from gateway.valkey import Valkey


@dataclass(frozen=True, slots=True)
class SweepReport:
    """How many holds were released, their request being settled, and how many voided, it being lost."""

    released: int
    voided: int


class Sweeper:
    """Releases expired holds. Any number may run at once: each hold is dropped by whoever comes first."""

    def __init__(self, valkey: Valkey, settlement: Settlement, ledger: Ledger) -> None:
        self._admission = Admission(valkey)
        self._settlement = settlement
        self._ledger = ledger

    async def sweep_once(self) -> SweepReport:
        """Look at every tenant once, at most `EXPIRED_BATCH` holds of each.

        Raises:
            ValkeyUnavailable, StoreUnavailable: the rest waits for the next time.
        """
        released = voided = 0
        for tenant_id in await self._admission.tenants():
            expired = await self._admission.expired(tenant_id)
            if not expired:
                continue
            settled = await self._settlement.settled(expired)
            released += await self._release(tenant_id, [id_ for id_ in expired if id_ in settled])
            voided += await self._void(tenant_id, [id_ for id_ in expired if id_ not in settled])
        return SweepReport(released, voided)

    async def _release(self, tenant_id: str, request_ids: list[UUID]) -> int:
        if not request_ids:
            return 0
        balance = await self._ledger.balance(tenant_id)
        version = BalanceVersion(tenant_id, balance.total, balance.version)
        return sum([await self._admission.release_id(tenant_id, id_, version) for id_ in request_ids])

    async def _void(self, tenant_id: str, request_ids: list[UUID]) -> int:
        voided = 0
        for request_id in request_ids:
            await self._admission.record_lost(tenant_id, request_id)
            log.warning("hold_lost", request_id=str(request_id), tenant=tenant_id)
            voided += await self._admission.release_id(tenant_id, request_id, None)
        return voided
