"""Endpoints of tenants: add, change, rotate, test, replay, remove. Whatever changes is in the audit log."""

import secrets
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Protocol, TypedDict

from billing.audit import service as audit
from billing.audit.event import Deed
from billing.db.access import reading, writing
from billing.db.pages import WHOLE, Page
from billing.db.transaction import Connection, Database
from billing.errors import NoticeMissing, StoreRefused, TenancyInvalid, TenantMissing, WebhookMissing
from billing.interval import Interval
from billing.notify import repository
from billing.notify.endpoint import ENDPOINTS_MAX, GRACE_MAX, Delivery, Endpoint, IssuedEndpoint
from billing.notify.kind import Kind
from billing.notify.notice import KeptNotice, Notice
from billing.notify.service import notice_id
from billing.notify.signature import SECRET_BYTES, secret_text


class Sealing(Protocol):
    """Encrypts under a secret of the deployment, bound to a name."""

    async def seal(self, plain: bytes, name: str, /) -> str:
        """Text that only `open` under the same name reads."""

    async def open(self, text: str, name: str, /) -> bytes | None:
        """What was sealed; None where it cannot be read."""


class EndpointChanges(TypedDict, total=False):
    """What of an endpoint may be changed; what is left out stays."""

    url: str
    kinds: frozenset[Kind] | None
    enabled: bool


class Webhooks:
    """Where ``tenant_id`` is optional and given, endpoints of other tenants are not there.

    Args:
        sealing: encrypts secrets at rest.
        url_fault: says why nothing can be sent to a URL; None: nothing speaks against it.
    """

    def __init__(self, database: Database, sealing: Sealing, url_fault: Callable[[str], str | None]) -> None:
        self._database = database
        self._sealing = sealing
        self._url_fault = url_fault

    async def add(
        self, tenant_id: str, url: str, kinds: frozenset[Kind] | None, at: datetime, *, actor: str
    ) -> IssuedEndpoint:
        """Have notices posted to a URL from now on. The answer alone has the secret.

        Raises:
            TenantMissing: no tenant has this id.
            TenancyInvalid: nothing can be sent there, no kinds, or as many endpoints as there may be.
        """
        made = self._checked(Endpoint(f"whk_{secrets.token_hex(8)}", tenant_id, url, kinds, at))
        try:
            async with self._database.transaction(writing(tenant_id)) as connection:
                if len(await repository.select_endpoints(connection, tenant_id, WHOLE)) >= ENDPOINTS_MAX:
                    raise TenancyInvalid("webhooks", f"there are {ENDPOINTS_MAX}, and may be no more")
                await repository.insert_endpoint(connection, made)
                secret = await self._new_secret(connection, made, at)
                deed = Deed(tenant_id, actor, "webhook.add", made.id, at, after=made.facts)
                await audit.append(connection, deed)
        except StoreRefused as refusal:
            if refusal.constraint == "fk_webhook_endpoint_tenant_id":
                raise TenantMissing(tenant_id) from refusal
            raise
        return IssuedEndpoint(secret, made)

    async def endpoints(self, tenant_id: str | None = None, page: Page = WHOLE) -> list[Endpoint]:
        """Of one tenant, or of all, oldest first."""
        async with self._database.transaction(reading(tenant_id)) as connection:
            return await repository.select_endpoints(connection, tenant_id, page)

    async def endpoint(self, endpoint_id: str, tenant_id: str | None = None) -> Endpoint:
        """One endpoint; raises WebhookMissing."""
        async with self._database.transaction(reading(tenant_id)) as connection:
            return await self._found(connection, endpoint_id, tenant_id)

    async def change(
        self,
        endpoint_id: str,
        changes: EndpointChanges,
        at: datetime,
        *,
        actor: str,
        tenant_id: str | None = None,
    ) -> Endpoint:
        """Change an endpoint. Disabled, it gets nothing, and what was on its way is given up: replay that.

        Raises:
            WebhookMissing: no endpoint has this id.
            TenancyInvalid: nothing can be sent there, or no kinds.
        """
        async with self._database.transaction(writing(tenant_id)) as connection:
            before = await self._found(connection, endpoint_id, tenant_id, lock=True)
            after = self._checked(replace(before, **changes))
            if after.enabled:
                after = replace(after, disabled_for=None)
            if after.enabled != before.enabled:
                after = replace(after, failing_since=None)
            await repository.update_endpoint(connection, after)
            if not after.enabled:
                await repository.give_up(connection, after.id)
            deed = Deed(before.tenant_id, actor, "webhook.set", before.id, at, before.facts, after.facts)
            await audit.append(connection, deed)
        return after

    async def rotate(
        self,
        endpoint_id: str,
        grace: timedelta,
        at: datetime,
        *,
        actor: str,
        tenant_id: str | None = None,
    ) -> IssuedEndpoint:
        """Give an endpoint a new secret; those before sign beside it for ``grace`` longer, at most.

        Raises:
            WebhookMissing: no endpoint has this id.
            TenancyInvalid: a grace that is negative, or longer than a year.
        """
        if not timedelta(0) <= grace <= GRACE_MAX:
            raise TenancyInvalid("grace", "it is from nothing to a year")
        async with self._database.transaction(writing(tenant_id)) as connection:
            found = await self._found(connection, endpoint_id, tenant_id, lock=True)
            await repository.end_secrets(connection, found.id, at + grace)
            secret = await self._new_secret(connection, found, at)
            facts = {**found.facts, "grace_s": int(grace.total_seconds())}
            await audit.append(
                connection, Deed(found.tenant_id, actor, "webhook.rotate", found.id, at, found.facts, facts)
            )
        return IssuedEndpoint(secret, found)

    async def remove(
        self, endpoint_id: str, at: datetime, *, actor: str, tenant_id: str | None = None
    ) -> Endpoint:
        """Remove an endpoint, its secrets and its record of deliveries; raises WebhookMissing."""
        async with self._database.transaction(writing(tenant_id)) as connection:
            before = await self._found(connection, endpoint_id, tenant_id, lock=True)
            await repository.delete_endpoint(connection, before.id)
            deed = Deed(before.tenant_id, actor, "webhook.remove", before.id, at, before.facts)
            await audit.append(connection, deed)
        return before

    async def test(self, endpoint_id: str, at: datetime, *, tenant_id: str | None = None) -> str:
        """Send a notice of kind ``webhook.test`` to this endpoint alone; returns its id.

        Raises:
            WebhookMissing: no endpoint has this id.
            TenancyInvalid: it is disabled.
        """
        async with self._database.transaction(writing(tenant_id)) as connection:
            found = await self._found(connection, endpoint_id, tenant_id)
            self._refuse_disabled(found)
            told = Notice(found.tenant_id, "webhook.test", at, {"webhook_id": found.id})
            kept = KeptNotice(notice_id(at), told)
            await repository.insert_notice(connection, kept)
            await repository.want_again(connection, found, repository.Wanted(at, notice_id=kept.id))
        return kept.id

    async def replay(
        self,
        endpoint_id: str,
        what: str | Interval,
        at: datetime,
        *,
        tenant_id: str | None = None,
    ) -> int:
        """Deliver once more, each under its old id: one notice, or all of an interval that it wants.

        Returns:
            How many.

        Raises:
            WebhookMissing, NoticeMissing: there is no such endpoint, or no such notice of its tenant.
            TenancyInvalid: the endpoint is disabled.
        """
        async with self._database.transaction(writing(tenant_id)) as connection:
            found = await self._found(connection, endpoint_id, tenant_id, lock=True)
            self._refuse_disabled(found)
            if isinstance(what, str):
                count = await repository.want_again(connection, found, repository.Wanted(at, notice_id=what))
                if not count:
                    raise NoticeMissing(what)
                return count
            return await repository.want_again(connection, found, repository.Wanted(at, interval=what))

    async def deliveries(
        self, endpoint_id: str, page: Page = WHOLE, *, tenant_id: str | None = None
    ) -> list[Delivery]:
        """What became of each notice at an endpoint, newest first; ``page.after`` is a notice's id.

        Raises:
            WebhookMissing: no endpoint has this id.
        """
        async with self._database.transaction(reading(tenant_id)) as connection:
            found = await self._found(connection, endpoint_id, tenant_id)
            return await repository.select_deliveries(connection, found.id, page)

    def _checked(self, endpoint: Endpoint) -> Endpoint:
        fault = self._url_fault(endpoint.url)
        if fault is not None:
            raise TenancyInvalid("url", fault)
        return endpoint

    @staticmethod
    def _refuse_disabled(endpoint: Endpoint) -> None:
        if not endpoint.enabled:
            raise TenancyInvalid("webhook", f"{endpoint.id} is disabled: enable it first")

    async def _new_secret(self, connection: Connection, endpoint: Endpoint, at: datetime) -> str:
        secret, name = secrets.token_bytes(SECRET_BYTES), f"whs_{secrets.token_hex(8)}"
        sealed = await self._sealing.seal(secret, name)
        await repository.insert_secret(connection, endpoint, (name, sealed), at)
        return secret_text(secret)

    @staticmethod
    async def _found(
        connection: Connection, endpoint_id: str, tenant_id: str | None, *, lock: bool = False
    ) -> Endpoint:
        if lock:
            found = await repository.lock_endpoint(connection, endpoint_id, tenant_id)
        else:
            found = await repository.select_endpoint(connection, endpoint_id, tenant_id)
        if found is None:
            raise WebhookMissing(endpoint_id)
        return found
