"""What is agreed with a tenant beside prices: said by operators, from a day on that is not invoiced yet."""

from datetime import date, datetime
from typing import Any, Final

import msgspec

from billing.audit import service as audit
from billing.audit.event import HOUSE, Deed
from billing.db.access import OPERATOR_READ, reading
from billing.db.transaction import Connection, Database
from billing.errors import InvoiceConflict, StoreRefused, TenantMissing
from billing.interval import zone_of
from billing.invoicing import repository as documents
from billing.invoicing.agreements import repository
from billing.invoicing.agreements.given_coupon import GivenCoupon
from billing.invoicing.party import Party
from billing.invoicing.terms import DEFAULT, Coupon, DatedTerms, Terms
from billing.tenancy.repository import select_tenant

_NO_TENANT: Final = ("fk_billing_terms_tenant_id", "fk_coupon_tenant_id")


class Agreements:
    """Terms are appended and never edited; of one day the last word holds. All of it is in the audit log."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def agree(
        self, tenant_id: str, effective_from: date, terms: Terms, at: datetime, *, actor: str
    ) -> DatedTerms:
        """Agree on terms from a day of the tenant's zone on.

        Raises:
            TenantMissing: no tenant has this id.
            TermsInvalid: they mean nothing.
            InvoiceConflict: the day has been invoiced, or the series begins another tenant's numbers.
        """
        terms.check()
        async with self._database.transaction() as connection:
            await documents.lock(connection, tenant_id)
            zone = await _zone(connection, tenant_id)
            closed = await documents.select_closed(connection, tenant_id)
            if closed is not None and effective_from < closed.until.astimezone(zone_of(zone)).date():
                raise InvoiceConflict("terms", f"{effective_from} is invoiced already: {closed.number}")
            if terms.series is not None and await repository.select_series_taken(
                connection, terms.series, tenant_id
            ):
                raise InvoiceConflict("series", f"{terms.series} begins another tenant's numbers")
            known = await repository.select_terms(connection, tenant_id)
            of_day = [one.revision for one in known if one.effective_from == effective_from]
            dated = DatedTerms(effective_from, terms, max(of_day, default=0) + 1)
            await repository.insert_terms(connection, tenant_id, dated, at, actor)
            before = [one for one in known if one.effective_from <= effective_from]
            facts = _facts(before[-1].terms if before else DEFAULT), _facts(terms)
            what = effective_from.isoformat()
            await audit.append(connection, Deed(tenant_id, actor, "invoice.terms", what, at, *facts))
        return dated

    async def terms(self, tenant_id: str) -> list[DatedTerms]:
        """All that were ever agreed with a tenant, in the order in which they take effect."""
        async with self._database.transaction(reading(tenant_id)) as connection:
            return await repository.select_terms(connection, tenant_id)

    async def name(self, tenant_id: str, party: Party, at: datetime, *, actor: str) -> None:
        """Say who a tenant is, or with `HOUSE` who sells; documents from now on bear it.

        Raises:
            TenantMissing: no tenant has this id.
        """
        async with self._database.transaction() as connection:
            if tenant_id != HOUSE:
                await _zone(connection, tenant_id)
            await repository.upsert_profile(connection, tenant_id, party, at, actor)
            # The log is for good, the profile is not: it says that, and not what, was changed.
            await audit.append(connection, Deed(tenant_id, actor, "invoice.profile", tenant_id, at, after={}))

    async def profile(self, tenant_id: str) -> Party | None:
        """Who a tenant is; None where nobody has said, or it is erased."""
        async with self._database.transaction(OPERATOR_READ) as connection:
            return await repository.select_profile(connection, tenant_id)

    async def erase(self, connection: Connection, tenant_id: str) -> None:
        """Forget who a tenant is, in documents too: those stay valid. In an operator's transaction."""
        await repository.delete_profile(connection, tenant_id)

    async def give_coupon(self, tenant_id: str, given: GivenCoupon, *, actor: str) -> None:
        """Give a coupon, to be used from its day on.

        Raises:
            TenantMissing: no tenant has this id.
            TermsInvalid: it takes off nothing.
            InvoiceConflict: the tenant was given one of this code.
        """
        given.coupon.check()
        try:
            async with self._database.transaction() as connection:
                if not await repository.insert_coupon(connection, tenant_id, given, actor):
                    raise InvoiceConflict(f"coupon {given.coupon.code}", "it was given before")
                facts = _coupon_facts(given)
                deed = Deed(tenant_id, actor, "coupon.give", given.coupon.code, given.given_at, after=facts)
                await audit.append(connection, deed)
        except StoreRefused as refusal:
            if refusal.constraint in _NO_TENANT:
                raise TenantMissing(tenant_id) from refusal
            raise

    async def end_coupon(self, tenant_id: str, code: str, at: datetime, *, actor: str) -> None:
        """Take a coupon back; raises InvoiceConflict where there is none to be used."""
        async with self._database.transaction() as connection:
            if not await repository.end_coupon(connection, tenant_id, code, at):
                raise InvoiceConflict(f"coupon {code}", "there is none to take back")
            await audit.append(connection, Deed(tenant_id, actor, "coupon.end", code, at))

    async def coupons(self, tenant_id: str) -> list[GivenCoupon]:
        """All that a tenant was given, in that order."""
        async with self._database.transaction(reading(tenant_id)) as connection:
            return await repository.select_coupons(connection, tenant_id)


async def _zone(connection: Connection, tenant_id: str) -> str:
    found = await select_tenant(connection, tenant_id)
    if found is None or found.id != tenant_id:
        raise TenantMissing(tenant_id)
    return found.tz


def _facts(terms: Terms) -> dict[str, Any]:
    facts: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(terms))
    return facts


def _coupon_facts(given: GivenCoupon) -> dict[str, Any]:
    coupon: Coupon = given.coupon
    return {
        "percent": coupon.percent,
        "cents": coupon.cents,
        "minimum_cents": coupon.minimum_cents,
        "periods": given.periods,
        "effective_from": given.effective_from.isoformat(),
    }
