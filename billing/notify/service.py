"""Telling tenants: a notice joins the transaction of what it is about, and so does each delivery of it.

Endpoints get a notice at least once, under one id for good, and in no promised order: one that is tried again
arrives behind later ones.
"""

import secrets
from datetime import datetime
from typing import Final

from billing.db.access import reading
from billing.db.pages import WHOLE, Page
from billing.db.transaction import Connection, Database
from billing.notify import repository
from billing.notify.notice import Facts, KeptNotice, Notice
from billing.request_id import RANDOM_BYTES, mint
from engine.proof.signed import canonical

PREFIX: Final = "ntc_"


async def emit(connection: Connection, notice: Notice) -> str | None:
    """Tell a tenant something if this transaction commits, and not otherwise.

    May be called as settler, as operator or as the tenant itself.

    Returns:
        The id of the notice; None where its occasion has been told already.

    Raises:
        StoreRefused: no tenant has this id.
        PayloadInvalid: its facts are no canonical JSON.
    """
    assert _exact(notice.facts), (
        f"facts of {notice.kind} hold what is not exact: write amounts as decimal texts"
    )
    canonical(notice.facts)
    kept = KeptNotice(notice_id(notice.at), notice)
    if not await repository.insert_notice(connection, kept):
        return None
    await repository.insert_deliveries(connection, kept)
    return kept.id


def notice_id(at: datetime) -> str:
    """A new one; later ones sort behind it."""
    return f"{PREFIX}{mint(at, secrets.token_bytes(RANDOM_BYTES)).hex}"


class Notices:
    """Reads only: what tenants have been told, with an endpoint or without."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def notices(self, tenant_id: str, page: Page = WHOLE) -> list[KeptNotice]:
        """Of one tenant, oldest first."""
        async with self._database.transaction(reading(tenant_id)) as connection:
            return await repository.select_notices(connection, tenant_id, page)


def _exact(fact: Facts | object) -> bool:
    match fact:
        case dict():
            return all(map(_exact, fact.values()))
        case list() | tuple():
            return all(map(_exact, fact))
        case _:
            return fact is None or isinstance(fact, str | int)
