"""What a fresh data directory starts with: prices, names of models, a demo tenant with credit and a key."""

from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from admin.settings import Settings, write_private
from billing.catalog.alias import Alias
from billing.catalog.service import Aliasing
from billing.errors import TenantMissing
from billing.ledger.credit import Grant
from billing.ledger.service import Ledger
from billing.money import FEMTO_PER_CENT, Femto
from billing.pricing import toml
from billing.pricing.book import PriceBook
from billing.pricing.service import Prices
from billing.tenancy.service import Tenancy
from billing.tenancy.tenant import Tenant

TENANT: Final = "demo"
CREDIT: Final = Femto(25 * 100 * FEMTO_PER_CENT)
CURRENCY: Final = "USD"
ACTOR: Final = "kvitto up"
ALIASES: Final = ("claude-*", "deepseek-*", "gpt-*")  # what clients ask for unless told otherwise


@dataclass(frozen=True, slots=True)
class Books:
    """The services that the demo is made by."""

    tenancy: Tenancy
    ledger: Ledger
    prices: Prices
    aliasing: Aliasing


async def prepare(books: Books, settings: Settings, at: datetime) -> None:
    """Make what is missing; a run that was killed half-way is completed by the next one.

    Args:
        books: services on the migrated database.
        settings: the stack's; ``served_name`` gets the demo's rates when no price covers it, and answers to
            the names that the demo has made aliases of and nobody has changed since.
        at: this instant.
    """
    await _publish(books.prices, settings.served_name, at)
    file = settings.data_dir / "credentials.json"
    known = _credentials(file)
    await _name(books.aliasing, settings.served_name, at, fresh=known is None)
    if known is not None:
        if known.get("base_url") != settings.base_url:
            _write(file, {**known, "base_url": settings.base_url})
        return
    tenant = await _tenant(books.tenancy, at)
    grant = Grant(amount=CREDIT, kind="granted", reason="demo", actor=ACTOR, idempotency_key="demo-credit")
    await books.ledger.grant(tenant.id, grant, at)
    issued = await books.tenancy.create_key(tenant.id, "demo", at, actor=ACTOR)
    _write(
        file,
        {
            "base_url": settings.base_url,
            "api_key": issued.secret,
            "console_url": None,
            "admin_email": None,
            "admin_password": None,
        },
    )


async def _publish(prices: Prices, served_name: str, at: datetime) -> None:
    """Publish the shipped books, of each the models that have no price yet: prices of the operator's stay."""
    demo = toml.shipped("demo").rows
    served = (replace(row, model=served_name) for row in demo)
    shipped = {(row.model, row.currency, row.effective_from): row for row in (*demo, *served)}
    priced = {(row.model, row.currency) for row in (await prices.book()).rows}
    rows = (*shipped.values(), *toml.shipped("deepseek").rows)
    fresh = tuple(row for row in rows if (row.model, row.currency) not in priced)
    await prices.publish(PriceBook(fresh), ACTOR, at)


async def _name(aliasing: Aliasing, served_name: str, at: datetime, *, fresh: bool) -> None:
    """Have the served model answer to usual names: where all is fresh, else to those that the demo gave."""
    rows = {row.pattern: row.set_by for row in (await aliasing.aliases()).rows}
    mine = [pattern for pattern in ALIASES if rows.get(pattern, ACTOR if fresh else None) == ACTOR]
    for pattern in mine:
        await aliasing.set_alias(Alias(pattern, served_name, at, ACTOR))


async def _tenant(tenancy: Tenancy, at: datetime) -> Tenant:
    try:
        return await tenancy.tenant(TENANT)
    except TenantMissing:
        return await tenancy.create_tenant(TENANT, CURRENCY, at=at, actor=ACTOR)


def _credentials(file: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = msgspec.json.decode(file.read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
    return found


def _write(file: Path, credentials: dict[str, Any]) -> None:
    write_private(file, msgspec.json.format(msgspec.json.encode(credentials)) + b"\n")
