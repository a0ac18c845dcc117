"""One task per process keeps the leases of its own holds alive."""

import asyncio
from collections import defaultdict
from uuid import UUID

from gateway.admission.admit import Admission
from gateway.admission.hold import Hold
from gateway.refusal import ValkeyUnavailable
from gateway.tasks import stop
from gateway.telemetry import log


class Leases:
    """The holds that this process answers for. What it stops renewing, the sweeper takes over."""

    def __init__(self, admission: Admission, renew_interval_s: float) -> None:
        self._admission = admission
        self._renew_interval_s = renew_interval_s
        self._own: defaultdict[str, set[UUID]] = defaultdict(set)
        self._task: asyncio.Task[None] | None = None

    def keep(self, hold: Hold) -> None:
        """Renew this hold's lease from now on."""
        self._own[hold.tenant_id].add(hold.request_id)

    def drop(self, hold: Hold) -> None:
        """Renew it no longer."""
        own = self._own[hold.tenant_id]
        own.discard(hold.request_id)
        if not own:
            del self._own[hold.tenant_id]

    def __len__(self) -> int:
        return sum(len(ids) for ids in self._own.values())

    def start(self) -> None:
        """Begin to renew."""
        self._task = asyncio.create_task(self._renew_forever(), name="leases")

    async def close(self) -> None:
        """Renew no more; holds that still stand run out and are swept."""
        await stop(self._task)

    async def renew(self) -> None:
        """Renew all once, in one pipeline."""
        rounds = [self._admission.renew(tenant_id, sorted(ids)) for tenant_id, ids in self._own.items()]
        await asyncio.gather(*rounds)

    async def _renew_forever(self) -> None:
        while True:
            await asyncio.sleep(self._renew_interval_s)
            try:
                await self.renew()
            except ValkeyUnavailable as error:
                log.warning("leases_not_renewed", holds=len(self), reason=str(error))
