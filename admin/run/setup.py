"""The step before the gateway: migrations, shipped prices, the demo tenant."""

import asyncio
import sys

from admin import clock, demo, settings
from admin.settings import Settings
from billing.catalog.service import Aliasing
from billing.db import migrate
from billing.db.transaction import Database
from billing.errors import RolesMissing
from billing.ledger.service import Ledger
from billing.pricing.service import Prices
from billing.tenancy.service import Tenancy


async def prepare(known: Settings) -> None:
    """Fill a migrated database with what a stack starts with."""
    database = Database(known.database_url, pool_size=1)
    try:
        tenancy = Tenancy(database, known.key_pepper)
        books = demo.Books(tenancy, Ledger(database), Prices(database), Aliasing(database))
        await demo.prepare(books, known, clock.now())
    finally:
        await database.close()


def main() -> int:
    """Entry point; returns the exit status."""
    known = settings.from_environment()
    try:
        migrate.upgrade(known.database_url)
    except RolesMissing as missing:
        sys.stderr.write(f"{missing}\n")
        return 1
    asyncio.run(prepare(known))
    return 0


if __name__ == "__main__":
    sys.exit(main())
