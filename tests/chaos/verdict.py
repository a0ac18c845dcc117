"""What must hold after a storm. Each finding is a sentence; none is what we want."""

from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from admin import clock
from engine.store.directory import PrefixStore
from tests.chaos.client import Seen
from tests.chaos.storm import ALIKE_CHARACTERS, Storm
from tests.e2e.stack import Stack

SETTLE_S = 120.0


def settle(stack: Stack, storm: Storm) -> None:
    """Wait until everything stands again and nothing is held: leases have run out, journals are drained."""
    stack.until(
        lambda: all(p["state"] == "ready" for p in stack.parts().values()), "all parts ready", SETTLE_S
    )
    stack.until(lambda: stack.requests_in_workers() == 0, "nothing left in the workers", SETTLE_S)
    stack.until(
        lambda: all(stack.open_holds(tenant) == 0 for tenant in storm.tenants), "no hold left", SETTLE_S
    )


def findings(stack: Stack, storm: Storm) -> list[str]:
    """Look at clients, books, receipts, workers and store."""
    rows = {row["request_id"]: row for tenant in storm.tenants for row in stack.usage(tenant)}
    return [
        *_clients(storm, rows),
        *_money(stack, storm, rows),
        *_receipts(stack, storm, list(rows)),
        *(f"the ledger: {fault}" for fault in stack.faults_in_ledger()),
        *_store(stack.data_dir / "store", storm),
        *_workers(stack),
    ]


def _clients(storm: Storm, rows: dict[str, Any]) -> Iterator[str]:
    """A complete answer is right, and billed as its client saw it; an error is billed nothing."""
    gateway_killed_s = [blow.at_s for blow in storm.blows if "gateway" in blow.what]
    for seen in storm.seen:
        name = f"request {seen.question.number} ({seen.request_id})"
        row = rows.get(seen.request_id or "")
        if seen.ending == "complete":
            yield from (f"{name}: {fault}" for fault in _complete(seen, storm, row))
        elif seen.ending == "error" and not seen.error:
            yield f"{name}: ended without its end and without an error"
        elif seen.ending == "error" and row is not None and Decimal(row["charge"]):
            # Nobody was left to see what a killed gateway's client got: the worker's word is billed.
            lost = any(seen.from_s - 1 <= at_s <= seen.to_s + 1 for at_s in gateway_killed_s)
            if not lost:
                yield f"{name}: an error was billed {row['charge']}: {seen.error}"
    twice = [id_ for id_, n in Counter(s.request_id for s in storm.seen if s.request_id).items() if n > 1]
    yield from (f"two answers were called {id_}" for id_ in twice)


def _complete(seen: Seen, storm: Storm, row: dict[str, Any] | None) -> Iterator[str]:
    golden = storm.golden[seen.question.text]
    if not any(text.startswith(seen.text[:ALIKE_CHARACTERS]) for text in golden):
        yield f"another answer than in quiet: {seen.text!r}, not {sorted(golden)}"
    if row is None:
        yield "a complete answer without an event"
        return
    usage = seen.usage
    told = (usage["prompt_cache_hit_tokens"], usage["prompt_cache_miss_tokens"], usage["completion_tokens"])
    billed = (
        row["cache_hit"] + row["cache_owed"],
        row["cache_miss"] + row["cache_write"],
        row["output"],
    )
    if told != billed or row["status"] != "completed":
        yield f"the client was told {told}, billed is {billed} ({row['status']})"


def _money(stack: Stack, storm: Storm, rows: dict[str, Any]) -> Iterator[str]:
    for tenant in storm.tenants:
        charged = [Decimal(row["charge"]) for row in rows.values() if row["tenant"] == tenant.name]
        left = stack.balance_in_books(tenant)
        if left != tenant.credit - sum(charged):
            yield f"{tenant.name}: {tenant.credit} granted, {sum(charged)} charged, {left} left"


def _receipts(stack: Stack, storm: Storm, request_ids: list[str]) -> Iterator[str]:
    """Events and what workers attest tell the same; only a killed worker is believed without its word."""
    killed = {blow.what.removeprefix("killed ") for blow in storm.blows}
    for request_id, receipt in stack.receipts(request_ids).items():
        if receipt.finding is not None:
            yield f"receipt {request_id}: {receipt.finding}"
        elif receipt.grade == "gateway-counted":
            missing = {attempt.worker for attempt in receipt.attempts} - killed
            if missing:
                yield f"receipt {request_id}: not attested, though {missing} were never killed"
        elif receipt.grade == "unattested" and receipt.usage is not None and receipt.usage.prompt:
            yield f"receipt {request_id}: billed and unattested"


def _store(root: Path, storm: Storm) -> Iterator[str]:
    """No block is wrong but those that were spoilt, and that nobody has asked for since."""
    spoilt = [str(blow.path) for blow in storm.blows if blow.path is not None]
    for fault in PrefixStore(root, lambda: int(clock.now().timestamp())).check_integrity():
        if not any(path in fault for path in spoilt):
            yield f"the store: {fault}"
    yield from (f"the store: {path} was left half written" for path in root.rglob("*.tmp"))


def _workers(stack: Stack) -> Iterator[str]:
    for name, blocks in stack.kv_blocks_in_use().items():
        if blocks:
            yield f"{name} holds {blocks} blocks of its KV cache for nobody"
