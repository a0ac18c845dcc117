"""The published price book."""

from datetime import datetime

from billing.db.access import OPERATOR_READ
from billing.db.transaction import Database
from billing.errors import (
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
from billing.pricing.publication import LEAD, UNSEEN, refusal
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
        except StoreRefused as refused:
            if inserting is None:
                raise
            if refused.constraint == "fk_price_row_plan":
                raise PlanMissing(inserting.plan or "") from refused
            if refused.constraint == "fk_price_row_tenant_id_currency":
                wrong = f"no tenant of this id is billed in {inserting.currency}"
                raise PriceInvalid(inserting.id, wrong) from refused
            raise
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
            PlanConflict: it begins sooner than 10 s after ``at``, or at the instant of another placement.
        """
        plan = placement.plan or "none"
        if placement.effective_from < at + LEAD:
            raise PlanConflict(plan, UNSEEN)
        try:
            async with self._database.transaction() as connection:
                placed = await repository.insert_placement(connection, placement, actor, at)
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
