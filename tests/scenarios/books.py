"""What the books say of a storm, read when all that it has left is settled."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final

from admin import clock
from admin.deployment import signer
from admin.engine import engine_options
from admin.settings import Settings
from billing.db.transaction import Database
from billing.ledger.service import Ledger
from billing.money import decimal_of
from billing.pricing.book import PriceBook
from billing.pricing.service import Prices
from billing.receipts.document import ReceiptDocument
from billing.receipts.log.sequencer import Pace
from billing.receipts.log.service import ReceiptLog
from billing.receipts.receipt import Receipt
from billing.receipts.service import Receipts
from billing.settlement.batch import Settlement
from billing.tenancy.service import Tenancy
from engine.api import Journals
from gateway.sweep import Patience, SweepBooks, Sweeper
from gateway.valkey import Valkey
from recipe.tokenizer import Tokenizer
from tests.e2e.stack import Stack
from tests.scenarios.crash import CREDIT, Crash

SETTLE_S: Final = 120.0

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Books:
    """What the books say.

    Args:
        rows: of `kvitto usage --json`.
        receipts: by request id, of all rows.
        sealed: by request id, what a request has cost by its receipt in the log.
        log: what the receipt log's own audit finds: its leaves have no gap, each event has one.
        unsettled: of requests that workers attest and that have no event.
        quarantined: why usage was put aside: a worker or a gateway was wrong.
        spent: by tenant, what its requests have cost, by the ledger's balance.
        price: what requests are rated by.
        holds: by tenant, how many stand.
        faults: what the ledger's own audit finds.
        tokens: how many a text has, counted as any client may, with the model's tokenizer.
    """

    rows: Sequence[Row]
    receipts: Mapping[str, Receipt]
    sealed: Mapping[str, Decimal]
    log: Sequence[str]
    unsettled: Sequence[Receipt]
    quarantined: Sequence[str]
    spent: Mapping[str, Decimal]
    price: PriceBook
    holds: Mapping[str, int]
    faults: Sequence[str]
    tokens: Callable[[str], int]

    def counted(self) -> str:
        """In one line, for people."""
        kinds = Counter(row["status"] for row in self.rows)
        charged = sum(bool(Decimal(row["charge"])) for row in self.rows)
        return f"{len(self.rows)} events ({dict(kinds)}), {charged} charged"

    def row(self, request_id: str | None) -> Row | None:
        return next((row for row in self.rows if row["request_id"] == request_id), None)


def settle(stack: Stack, crash: Crash, *, hurried: bool = False) -> None:
    """Wait until everything stands again and nothing is held: leases have run out, journals are drained.

    ``hurried``: leases run out now, and the test sweeps itself what the jobs would in another minute.
    """
    stack.until(lambda: stack.ready, "all parts ready", SETTLE_S)
    stack.until(lambda: stack.requests_in_workers() == 0, "nothing left in the workers", SETTLE_S)
    if hurried:
        stack.in_books(lambda database: _sweep(stack.settings, database, crash.tenants))
    stack.until(
        lambda: all(stack.open_holds_of(tenant_id) == 0 for tenant_id in crash.tenants),
        "no hold left",
        SETTLE_S,
    )
    stack.in_books(lambda database: _sweep(stack.settings, database))


async def _sweep(known: Settings, database: Database, ended: Iterable[str] = ()) -> None:
    """Drain the journals, and settle what lost its hold in the wipe: nobody serves it any more.

    ``ended``: ids of tenants whose leases have run out now, and nobody renews them.
    """
    valkey, journals, settlement = (
        Valkey.connect(known.valkey_url),
        Journals(engine_options(known)),
        Settlement(database),
    )
    await settlement.start()
    await journals.open()
    try:
        for tenant_id in ended:
            leases = f"kv:{{{tenant_id}}}:leases"
            for request_id in await valkey.call("ZRANGE", leases, 0, -1):
                await valkey.call("ZADD", leases, "XX", 1, request_id)
        tenancy, prices, receipts = Tenancy(database, known.key_pepper), Prices(database), Receipts(database)
        swept = SweepBooks(tenancy, prices, Ledger(database), settlement, receipts)
        patience = Patience(grace_s=0.0, late_s=0.0)
        await Sweeper(valkey, swept, journals, patience=patience).sweep_once()
    finally:
        await journals.close()
        await settlement.close()
        await valkey.close()


def read(stack: Stack, crash: Crash) -> Books:
    """Read everything of a storm's tenants."""
    rows = [row for name in crash.tenants.values() for row in stack.told("usage", "--tenant", name)]
    model_dir = stack.settings.model_dir
    assert model_dir is not None
    tokenizer = Tokenizer.from_model_dir(model_dir)
    sealed, log = stack.in_books(lambda database: _sealed(stack.settings, database, crash))
    since, until = crash.begun_at - timedelta(minutes=1), clock.now() + timedelta(minutes=1)
    return Books(
        rows=rows,
        receipts=stack.receipts([row["request_id"] for row in rows]),
        sealed=sealed,
        log=log,
        unsettled=stack.in_books(lambda database: Receipts(database).unbilled_between(since, until)),
        quarantined=[row["reason"] for row in stack.told("usage", "--quarantined")],
        spent=stack.in_books(lambda database: _spent(database, crash)),
        price=stack.in_books(lambda database: Prices(database).book()),
        holds={name: stack.open_holds_of(tenant_id) for tenant_id, name in crash.tenants.items()},
        faults=stack.faults_in_ledger(),
        tokens=lambda text: len(tokenizer.encode_plain(text)),
    )


async def _sealed(known: Settings, database: Database, crash: Crash) -> tuple[dict[str, Decimal], list[str]]:
    """Seal what there is, though it is not late, and read it back; and what the log's audit finds."""
    signs, at_once = signer(known), Pace(late=timedelta(0), certificate_late=timedelta(0))
    log, sealed = ReceiptLog(database, signs, at_once), dict[str, Decimal]()
    await log.close(clock.now())
    for tenant_id in crash.tenants:
        async for one in log.receipts(tenant_id):
            receipt = ReceiptDocument.read(one.receipt)
            sealed[str(receipt.request_id)] = Decimal(decimal_of(receipt.charge))
    return sealed, await log.check_integrity(signs.ring)


async def _spent(database: Database, crash: Crash) -> dict[str, Decimal]:
    ledger = Ledger(database)
    return {
        name: Decimal(CREDIT) - Decimal(decimal_of((await ledger.balance(tenant_id)).total))
        for tenant_id, name in crash.tenants.items()
    }
