"""A sweeper over a house, and the holds that a dead gateway leaves."""

from dataclasses import dataclass, replace
from typing import Any

from billing.ledger.balance import BalanceVersion
from billing.money import Femto
from billing.receipts.memo import Memo
from billing.receipts.receipt import Receipt
from billing.receipts.service import Receipts
from billing.settlement.batch import Settlement
from engine.proof.attestation import Attestation
from gateway.admission.admit import LOST_HOLDS, Admission
from gateway.admission.hold import Hold
from gateway.sweep import LATE_S, Patience, SweepBooks, Sweeper
from tests.attested import Signed, decode, prefill
from tests.gateway.conftest import ROW, House
from tests.gateway.doubles import MODEL, ScriptedJournals


def sweeper(
    house: House,
    journals: ScriptedJournals | None = None,
    settlement: Settlement | None = None,
    lost_after_s: float = 600.0,
    grace_s: float = 0.0,
    late_s: float = LATE_S,
) -> Sweeper:
    parts = house.parts
    books = SweepBooks(
        parts.tenancy,
        parts.prices,
        parts.ledger,
        settlement or parts.settlement,
        Receipts(parts.database),
    )
    return Sweeper(
        parts.valkey,
        books,
        journals or ScriptedJournals(),
        patience=Patience(lost_after_s, grace_s, late_s),
    )


async def funded(house: House, lease_s: float) -> Admission:
    admission = Admission(house.parts.valkey, lease_s=lease_s)
    balance = await house.parts.ledger.balance(house.tenant_id)
    await admission.project(BalanceVersion(house.tenant_id, balance.spendable, balance.version))
    return admission


@dataclass(frozen=True)
class Orphan:
    """A request whose gateway is gone, and what workers can attest of it."""

    house: House
    hold: Hold

    @classmethod
    async def of(cls, house: House, amount: int = 10**12) -> "Orphan":
        return cls(house, await (await funded(house, 0.0)).admit(house.tenant_id, Femto(amount)))

    @property
    def memo(self) -> Memo:
        return Memo(self.house.tenant_id, self.house.key_id, MODEL, "chat", ROW.id)

    def prefilled(self, attempt: int = 0, **fields: Any) -> Signed:
        said = {"hit_tokens": 4, "memo": self.memo.to_text(), **fields}
        return Signed(prefill(self.hold.request_id, attempt, **said))

    def decoded(self, attempt: int, output_from: int, output_to: int, **fields: Any) -> Signed:
        said = {"memo": self.memo.to_text(), **fields}
        return Signed(decode(self.hold.request_id, attempt, output_from, output_to, **said))

    def with_memo(self, **fields: Any) -> list[Signed]:
        memo = replace(self.memo, **fields).to_text()
        return [self.prefilled(memo=memo), self.decoded(1, 0, 5, memo=memo)]

    async def receipt(self) -> Receipt:
        receipts = Receipts(self.house.parts.database)
        return (await receipts.of([self.hold.request_id]))[self.hold.request_id]

    async def recorded_as_lost(self) -> bool:
        entries = await self.house.parts.valkey.call("XRANGE", LOST_HOLDS, "-", "+")
        return any(str(self.hold.request_id) in str(fields) for _, fields in entries)


def said(*lines: Signed) -> tuple[Attestation, ...]:
    return tuple(line.attestation for line in lines)
