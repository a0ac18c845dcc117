"""The operator's aliases of models. Gateways read them anew every two seconds."""

from datetime import datetime

from billing.audit import service as audit
from billing.audit.event import HOUSE, Deed
from billing.catalog import repository
from billing.catalog.alias import Alias, Aliases
from billing.db.access import OPERATOR_READ
from billing.db.transaction import Database
from billing.errors import AliasMissing


class Aliasing:
    """Rows are few, all tenants', and in force as soon as a gateway has read them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def aliases(self) -> Aliases:
        """All rows."""
        async with self._database.transaction(OPERATOR_READ) as connection:
            return Aliases(await repository.select_aliases(connection))

    async def set_alias(self, alias: Alias) -> Alias:
        """Let a model answer to a pattern, in place of the one that has so far; returns what is in force.

        What is so already stays, with who made it so and when.
        """
        async with self._database.transaction() as connection:
            before = await repository.lock_alias(connection, alias.pattern)
            if before is not None and before.model == alias.model:
                return before
            await repository.upsert_alias(connection, alias)
            was = None if before is None else {"model": before.model}
            now = {"model": alias.model}
            deed = Deed(HOUSE, alias.set_by, "alias.set", alias.pattern, alias.set_at, was, now)
            await audit.append(connection, deed)
        return alias

    async def remove_alias(self, pattern: str, actor: str, at: datetime) -> Alias:
        """Let nobody answer to a pattern any more; returns what was.

        Raises:
            AliasMissing: nobody does.
        """
        async with self._database.transaction() as connection:
            before = await repository.lock_alias(connection, pattern)
            if before is None:
                raise AliasMissing(pattern)
            await repository.delete_alias(connection, pattern)
            was = {"model": before.model}
            await audit.append(connection, Deed(HOUSE, actor, "alias.remove", pattern, at, was))
        return before
