"""The published price book."""

from collections.abc import Sequence
from datetime import datetime

from billing.audit import service as audit
from billing.audit.event import HOUSE, Deed
from billing.db.access import OPERATOR_READ
from billing.db.transaction import Database
from billing.errors import (
    BillingError,
    PlanConflict,
    PlanMissing,
    PriceConflict,
    PriceInvalid,
    StoreRefused,
    TenantMissing,
)
from billing.pricing import repository
from billing.pricing.book import Placement, PriceBook, PriceRow
from billing.pricing.contradictions import contradictions
from billing.pricing.publication import followed, placement_refusal, refusal, said
from billing.pricing.replay import Replay, Total


class Prices:
    """Append-only: a row, once published, rates its time for ever."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def publish(self, book: PriceBook, actor: str, at: datetime) -> int:
        """Add the rows of ``book`` that are not published yet; all or none.

        Returns:
            How many were added. Rows published already, and the same, count as nothing.

        Raises:
            PriceInvalid: a row contradicts itself, or names no tenant that is billed in its currency.
            PriceConflict: a row cannot stand beside what is published: `billing.pricing.publication.refusal`.
            PlanMissing: a row is of a plan that has not been created.
        """
        for row in book.rows:
            for _, reason in contradictions(row):
                raise PriceInvalid(row.id, reason)
        inserting: PriceRow | None = None
        try:
            async with self._database.transaction() as connection:
                await repository.lock(connection)
                published = await repository.select_book(connection)
                known = {row.id for row in published.rows}
                fresh = [row for row in book.rows if row.id not in known]
                for row in book.rows:
                    conflict = refusal(row, published, book, at)
                    if conflict is not None:
                        raise PriceConflict(row.id, conflict)
                for inserting in fresh:
                    await repository.insert_row(connection, inserting, actor, at)
                for deed in _deeds(fresh, published, actor, at):
                    await audit.append(connection, deed)
        except StoreRefused as refused:
            if inserting is None:
                raise
            raise _refused(inserting, refused) from refused
        return len(fresh)

    async def book(self) -> PriceBook:
        """All that is published, and who is on which plan."""
        async with self._database.transaction(OPERATOR_READ) as connection:
            return await repository.select_book(connection)

    async def create_plan(self, name: str, actor: str, at: datetime) -> None:
        """Make a plan, without prices yet.

        Raises:
            PlanConflict: the name is taken, or is none.
        """
        try:
            async with self._database.transaction() as connection:
                made = await repository.insert_plan(connection, name, actor, at)
                if made:
                    await audit.append(connection, Deed(HOUSE, actor, "plan.create", name, at, after={}))
        except StoreRefused as refused:
            if refused.constraint == "ck_price_plan_name":
                raise PlanConflict(name, "a name is small letters, digits, - and _") from refused
            raise
        if not made:
            raise PlanConflict(name, "exists already")

    async def plans(self) -> list[str]:
        """The names of all plans."""
        async with self._database.transaction(OPERATOR_READ) as connection:
            return await repository.select_plans(connection)

    async def place(self, placement: Placement, actor: str, at: datetime) -> None:
        """Put a tenant on a plan, or on none, from an instant on that every gateway will have heard of it.

        Raises:
            PlanMissing, TenantMissing: there is none.
            PlanConflict: it begins too soon (`placement_refusal`), or at the instant of another placement.
        """
        plan = placement.plan or "none"
        try:
            async with self._database.transaction() as connection:
                await repository.lock(connection)
                book = (await repository.select_book(connection)).of(placement.tenant_id)
                reason = placement_refusal(placement, book, at)
                if reason is not None:
                    raise PlanConflict(plan, reason)
                placed = await repository.insert_placement(connection, placement, actor, at)
                if placed:
                    was = {"plan": book.plan(placement.effective_from)}
                    now = {"plan": placement.plan, "effective_from": placement.effective_from.isoformat()}
                    who = placement.tenant_id
                    await audit.append(connection, Deed(who, actor, "plan.place", who, at, was, now))
        except StoreRefused as refused:
            if refused.constraint == "fk_tenant_plan_plan":
                raise PlanMissing(plan) from refused
            if refused.constraint == "fk_tenant_plan_tenant_id":
                raise TenantMissing(placement.tenant_id) from refused
            raise
        if not placed:
            raise PlanConflict(plan, "the tenant is placed at this very instant already")

    async def replay(self, book: PriceBook, since: datetime, until: datetime) -> dict[tuple[str, str], Total]:
        """Rate what was rated in ``[since, until)`` by the rows of another book, tenants on the same plans.

        Returns:
            Sums by tenant id and currency. With the published rows both are what the ledger took.
        """
        async with self._database.transaction(OPERATOR_READ) as connection:
            published = await repository.select_book(connection)
            replay = Replay(published, PriceBook(book.rows, published.placements))
            async for request in repository.stream_recorded(connection, since, until):
                replay.add(request)
        return replay.totals


def _refused(row: PriceRow, refused: StoreRefused) -> BillingError:
    if refused.constraint == "fk_price_row_plan":
        return PlanMissing(row.plan or "")
    if refused.constraint == "fk_price_row_tenant_id_currency":
        return PriceInvalid(row.id, f"no tenant of this id is billed in {row.currency}")
    return refused


def _deeds(fresh: Sequence[PriceRow], published: PriceBook, actor: str, at: datetime) -> list[Deed]:
    """A deed a row, in the chain of the tenant whose own price it is, in the order of chains."""
    deeds = (
        Deed(
            tenant_id=row.tenant_id or HOUSE,
            actor=actor,
            action="price.publish",
            object=row.id,
            at=at,
            before=followed(row, (*published.rows, *fresh)),
            after=said(row),
        )
        for row in fresh
    )
    return sorted(deeds, key=lambda deed: deed.tenant_id)
