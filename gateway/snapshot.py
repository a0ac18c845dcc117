"""What the gateway knows without asking: keys (2 s old at most, changes pushed), prices, aliases."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Generic, TypeVar

from billing.catalog.alias import Aliases
from billing.catalog.service import Aliasing
from billing.errors import BillingError, PriceMissing, StoreUnavailable
from billing.pricing.book import PriceBook
from billing.pricing.service import Prices
from billing.tenancy.api_key import KeyGrant
from billing.tenancy.keys import checksum_ok
from billing.tenancy.service import Tenancy
from gateway.permission import from_allowed_network
from gateway.refusal import KeyRefused, NotPermitted, ValkeyUnavailable
from gateway.tasks import stop
from gateway.telemetry import log
from gateway.valkey import Valkey

CHANGED_CHANNEL: Final = "kv:changed"
RESUBSCRIBE_PAUSE_S: Final = 0.5

Read = TypeVar("Read")


async def announce_change(valkey: Valkey, owner_id: str) -> None:
    """Tell every gateway to forget the grants of a key, a project or a tenant now.

    For whatever a grant carries: revocation, rotation, terms, limits, budgets. Gateways that miss it forget
    within their age bound.

    Raises:
        ValkeyUnavailable: not told; the age bound alone holds.
    """
    await valkey.publish(CHANGED_CHANNEL, owner_id)


@dataclass(frozen=True, slots=True)
class _Known:
    grant: KeyGrant | None
    asked_at_s: float


class KeySnapshot:
    """Grants by key digest, each used for at most ``age_max_s`` after it was asked for."""

    def __init__(self, tenancy: Tenancy, valkey: Valkey, *, age_max_s: float, keys_max: int) -> None:
        self._tenancy = tenancy
        self._valkey = valkey
        self._age_max_s = age_max_s
        self._keys_max = keys_max
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._asked: dict[bytes, asyncio.Task[_Known]] = {}
        self._listener: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to listen for changes."""
        self._listener = asyncio.create_task(self._listen_forever(), name="key changes")

    async def close(self) -> None:
        """Stop listening."""
        await stop(self._listener)
        await asyncio.gather(*self._asked.values(), return_exceptions=True)

    async def grant(self, secret: str, client: str | None = None) -> KeyGrant:
        """Find whose request this is.

        Args:
            secret: the key that came with it, ``kv_live_…``.
            client: address that the request comes from, as far as we know it.

        Raises:
            KeyRefused: malformed, unknown, revoked or lapsed.
            NotPermitted: the key may not be used from this address.
            StoreUnavailable: the key is not known here and Postgres cannot be asked.
        """
        if not checksum_ok(secret):
            raise KeyRefused("this is not a complete API key: its checksum does not match")
        known = await self._find(self._tenancy.digest(secret))
        grant = known.grant
        if grant is None:
            raise KeyRefused("this API key is not known")
        if grant.revoked_at is not None:
            raise KeyRefused("this API key has been revoked")
        if grant.lapses_in is not None and grant.lapses_in.total_seconds() <= _now_s() - known.asked_at_s:
            raise KeyRefused("this API key has expired, or another has taken its place")
        if not from_allowed_network(grant, client):
            raise NotPermitted("this API key may not be used from this address")
        return grant

    def forget(self, owner_id: str) -> None:
        """Drop what is known of a key, or of a project's or tenant's keys, answers under way included."""
        for digest, known in list(self._known.items()):
            grant = known.grant
            if grant is not None and owner_id in (grant.key_id, grant.project_id, grant.tenant_id):
                del self._known[digest]
        self._asked.clear()

    async def _find(self, digest: bytes) -> _Known:
        known = self._known.get(digest)
        if known is not None and _now_s() - known.asked_at_s < self._age_max_s:
            self._known.move_to_end(digest)
            return known
        asked = self._asked.get(digest)
        if asked is None:
            asked = asyncio.create_task(self._ask(digest))
            self._asked[digest] = asked
        return await asyncio.shield(asked)

    async def _ask(self, digest: bytes) -> _Known:
        asked_at_s = _now_s()
        try:
            known = _Known(await self._tenancy.find_key(digest), asked_at_s)
        finally:
            current = self._asked.get(digest) is asyncio.current_task()
            if current:
                del self._asked[digest]
        if current:  # no change came in between
            self._known[digest] = known
            self._known.move_to_end(digest)
            if len(self._known) > self._keys_max:
                self._known.popitem(last=False)
        return known

    async def _listen_forever(self) -> None:
        while True:
            try:
                async for owner_id in self._valkey.listen(CHANGED_CHANNEL):
                    if owner_id:
                        self.forget(owner_id)
                    else:
                        self._known.clear()  # messages may have been missed before this subscription
            except ValkeyUnavailable as error:
                log.warning("key_changes_not_heard", reason=str(error))
            await asyncio.sleep(RESUBSCRIBE_PAUSE_S)


class _Reading(Generic[Read]):
    """Something of the operator's, read again every few seconds; the last reading outlives Postgres."""

    def __init__(self, read: Callable[[], Awaitable[Read]], what: str, *, refresh_interval_s: float) -> None:
        self._read = read
        self._what = what
        self._refresh_interval_s = refresh_interval_s
        self._last: Read | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to read it again and again."""
        self._task = asyncio.create_task(self._refresh_forever(), name=self._what)

    async def close(self) -> None:
        """Read no more."""
        await stop(self._task)

    async def refresh(self) -> None:
        """Read it now.

        Raises:
            StoreUnavailable: Postgres cannot be asked; the old reading stays.
        """
        self._last = await self._read()

    async def attempt(self) -> None:
        """Read it now if that can be done; else say so in the log."""
        try:
            await self.refresh()
        except BillingError as error:
            log.warning(f"{self._what}_not_refreshed", reason=str(error))

    async def _refresh_forever(self) -> None:
        while True:
            await self.attempt()
            await asyncio.sleep(self._refresh_interval_s)


class PriceSnapshot(_Reading[PriceBook]):
    """The price book."""

    def __init__(self, prices: Prices, *, refresh_interval_s: float) -> None:
        super().__init__(prices.book, "prices", refresh_interval_s=refresh_interval_s)

    @property
    def book(self) -> PriceBook:
        """The book as last read."""
        return self._last or PriceBook(())

    async def covering(self, tenant_id: str, model: str, currency: str, at: datetime) -> PriceBook:
        """Return the tenant's book, which prices the model: read once more if the known one does not.

        Raises:
            PriceMissing: neither does.
        """
        book = self.book.of(tenant_id)
        try:
            book.row(model, currency, at)
        except PriceMissing:
            await self.refresh()
            book = self.book.of(tenant_id)
            book.row(model, currency, at)
        return book


class AliasSnapshot(_Reading[Aliases]):
    """The operator's aliases of models."""

    def __init__(self, aliasing: Aliasing, *, refresh_interval_s: float) -> None:
        super().__init__(aliasing.aliases, "aliases", refresh_interval_s=refresh_interval_s)

    @property
    def aliases(self) -> Aliases:
        """The rows as last read.

        Raises:
            StoreUnavailable: none have been read since this process began.
        """
        if self._last is None:
            raise StoreUnavailable("the names of models have not been read yet")
        return self._last


def _now_s() -> float:
    return asyncio.get_running_loop().time()
