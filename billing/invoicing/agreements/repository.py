"""Statements on profiles, terms and coupons."""

from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import delete, distinct, func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.db.tables import billing_profile, billing_terms, coupon, invoice, invoice_line, tenant
from billing.invoicing.agreements.given_coupon import GivenCoupon
from billing.invoicing.party import Party
from billing.invoicing.terms import Coupon, DatedTerms, Terms


async def select_profile(connection: AsyncConnection, tenant_id: str) -> Party | None:
    """None where none is set, or it is erased."""
    statement = select(billing_profile.c.profile).where(billing_profile.c.tenant_id == tenant_id)
    written = (await connection.execute(statement)).scalar_one_or_none()
    return None if written is None else Party.read(written)


async def upsert_profile(
    connection: AsyncConnection, tenant_id: str, party: Party, at: datetime, actor: str
) -> None:
    """In place of the one before."""
    values = {"profile": party.facts(), "set_at": at, "set_by": actor}
    statement = upsert(billing_profile).values(tenant_id=tenant_id, **values)
    await connection.execute(statement.on_conflict_do_update(index_elements=["tenant_id"], set_=values))


async def delete_profile(connection: AsyncConnection, tenant_id: str) -> int:
    """And the copies of it that documents keep; returns how many profiles there were."""
    gone = await connection.execute(
        delete(billing_profile)
        .where(billing_profile.c.tenant_id == tenant_id)
        .returning(billing_profile.c.tenant_id)
    )
    of_tenant = invoice.c.tenant_id == tenant_id
    await connection.execute(update(invoice).where(of_tenant).values(buyer=None, buyer_nonce=None))
    return len(gone.all())


async def select_terms(connection: AsyncConnection, tenant_id: str) -> list[DatedTerms]:
    """All that were ever agreed, in the order in which they take effect."""
    c = billing_terms.c
    statement = select(c.effective_from, c.terms, c.revision).where(c.tenant_id == tenant_id)
    found = await connection.execute(statement.order_by(c.effective_from, c.revision))
    return [DatedTerms(day, Terms.read(written), revision) for day, written, revision in found]


async def insert_terms(
    connection: AsyncConnection, tenant_id: str, dated: DatedTerms, at: datetime, actor: str
) -> None:
    """Refused by fk_billing_terms_tenant_id when there is no such tenant."""
    values: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(dated.terms))
    await connection.execute(
        insert(billing_terms).values(
            tenant_id=tenant_id,
            effective_from=dated.effective_from,
            revision=dated.revision,
            terms=values,
            set_at=at,
            set_by=actor,
        )
    )


async def select_series_taken(connection: AsyncConnection, series: str, tenant_id: str) -> bool:
    """Whether another tenant's numbers begin so, or ever did."""
    agreed = select(billing_terms.c.tenant_id).where(
        billing_terms.c.terms["series"].astext == series, billing_terms.c.tenant_id != tenant_id
    )
    own = select(tenant.c.id).where(
        func.upper(func.substr(tenant.c.id, 5, 12)) == series, tenant.c.id != tenant_id
    )
    return (await connection.execute(agreed.union_all(own).limit(1))).first() is not None


async def insert_coupon(connection: AsyncConnection, tenant_id: str, given: GivenCoupon, actor: str) -> bool:
    """False when the tenant was given one of this code. Refused by fk_coupon_tenant_id without a tenant."""
    statement = (
        upsert(coupon)
        .values(
            tenant_id=tenant_id,
            code=given.coupon.code,
            percent=given.coupon.percent,
            cents=given.coupon.cents,
            minimum_cents=given.coupon.minimum_cents,
            periods=given.periods,
            effective_from=given.effective_from,
            given_at=given.given_at,
            given_by=actor,
        )
        .on_conflict_do_nothing(index_elements=["tenant_id", "code"])
        .returning(coupon.c.code)
    )
    return (await connection.execute(statement)).first() is not None


async def end_coupon(connection: AsyncConnection, tenant_id: str, code: str, at: datetime) -> bool:
    """False when there is none that has not ended."""
    statement = (
        update(coupon)
        .where(coupon.c.tenant_id == tenant_id, coupon.c.code == code, coupon.c.ended_at.is_(None))
        .values(ended_at=at)
        .returning(coupon.c.code)
    )
    return (await connection.execute(statement)).first() is not None


async def select_coupons(connection: AsyncConnection, tenant_id: str) -> list[GivenCoupon]:
    """In the order in which they were given, each with the documents, not void, that used it."""
    used = (
        select(func.count(distinct(invoice_line.c.number)))
        .join(invoice, invoice.c.number == invoice_line.c.number)
        .where(
            invoice_line.c.tenant_id == coupon.c.tenant_id,
            invoice_line.c.coupon == coupon.c.code,
            invoice.c.kind == "invoice",
            invoice.c.state != "void",
        )
        .correlate(coupon)
        .scalar_subquery()
    )
    c = coupon.c
    statement = (
        select(
            *(c.code, c.percent, c.cents, c.minimum_cents),
            *(c.periods, c.effective_from, c.given_at, c.ended_at, used),
        )
        .where(c.tenant_id == tenant_id)
        .order_by(c.given_at, c.code)
    )
    return [
        GivenCoupon(Coupon(code, percent, cents, minimum), *rest)
        for code, percent, cents, minimum, *rest in await connection.execute(statement)
    ]
