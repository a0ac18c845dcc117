"""A log of its own for each test."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from admin import clock
from billing.receipts.head import TreeHead
from billing.receipts.log.head import StoredHead
from billing.receipts.log.service import ReceiptLog
from billing.settlement.batch import Settlement
from engine.proof.ring import RingSigner
from tests.billing.conftest import AT_ONCE, signer


@dataclass(frozen=True)
class Sealing:
    """A house, its settlement and its log, whose receipts are sealed as soon as they are settled."""

    house: Any
    settlement: Settlement
    signer: RingSigner
    log: ReceiptLog

    async def settle(self, *numbers: int, house: Any = None) -> None:
        """Settle requests of these numbers, one transaction after the other."""
        for number in numbers:
            await self.settlement.settle((house or self.house).event(number))

    async def seal(self) -> StoredHead | None:
        """Now."""
        return await self.log.seal(clock.now())

    async def check(self, request_id: Any, head: StoredHead | None = None) -> int:
        """See that its receipt is in the log, by every signature and hash; returns its leaf's index."""
        size = None if head is None else head.head.size
        sealed, proved_by = await self.log.inclusion(request_id, size=size)
        sealed.check(TreeHead.verify(proved_by.document, self.signer.ring))
        return sealed.leaf_index


@pytest.fixture
def database_url(postgres_server: Any, migrated_template: str) -> Iterator[str]:
    """URL of a fresh migrated database, one a test."""
    name = f"kvitto_{secrets.token_hex(6)}"
    postgres_server.execute(f"CREATE DATABASE {name} TEMPLATE {migrated_template}")
    yield postgres_server.url(name)
    postgres_server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def sealing(house: Any, settlement: Settlement) -> Sealing:
    one = signer()
    return Sealing(house, settlement, one, ReceiptLog(house.database, one, AT_ONCE))
