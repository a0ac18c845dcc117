"""`kvitto usage` and `kvitto chat`: settled events of a real database, shown to the femto-unit."""

import asyncio
import json
import secrets
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from admin.settings import Settings
from admin.stack.state import Layout
from billing.db.transaction import Database
from billing.pricing import toml
from billing.pricing.rating import rate
from billing.receipts.service import Receipts
from billing.request_id import RANDOM_BYTES, mint
from billing.settlement.batch import Settlement
from billing.settlement.event import UsageEvent
from billing.settlement.quarantine import Quarantined
from billing.usage import TokenUsage
from engine.proof.coverage import Attempt
from tests.attested import Signed, prefill

MODEL = "smollm2-135m-instruct"
DAY = datetime(2026, 11, 24, 12, tzinfo=UTC)
COLUMNS = [
    "request_id", "tenant", "key", "model", "rated_at", "status",
    "cache_hit", "cache_owed", "cache_write", "cache_miss", "output", "charge", "currency",
]  # fmt: skip


def attest(settings: Settings, request_id: str) -> None:
    """Keep what a worker says of a request."""

    async def work() -> None:
        database = Database(settings.database_url, pool_size=1)
        try:
            await Receipts(database).keep([Signed(prefill(request_id, worker="p7"))])
        finally:
            await database.close()

    asyncio.run(work())


@pytest.fixture
def customer(kvitto: Any, demo_prices: None) -> dict[str, Any]:
    """A tenant with a key and a dollar, as `key create` tells it."""
    name = f"customer-{secrets.token_hex(4)}"
    kvitto("tenant", "create", name)
    kvitto("credit", "grant", name, "1")
    return dict(kvitto("key", "create", name, "--name", "laptop", "--json").told)


def settle(settings: Settings, customer: dict[str, Any], usage: TokenUsage, at: datetime) -> str:
    """Settle one completed request of the customer; its id."""
    event = UsageEvent(
        request_id=mint(at, secrets.token_bytes(RANDOM_BYTES)),
        tenant_id=customer["tenant_id"],
        key_id=customer["id"],
        model=MODEL,
        status="completed",
        admitted_at=at,
        rated_at=at,
        usage=usage,
        reasoning_tokens=0,
        charge=rate(toml.shipped("demo"), MODEL, "USD", usage, at),
        traffic_class="chat",
        attempts=(Attempt(0, "both", "worker", 0, usage.output),),
    )

    async def work() -> None:
        database = Database(settings.database_url, pool_size=1)
        settlement = Settlement(database)
        await settlement.start()
        try:
            await settlement.settle(event)
        finally:
            await settlement.close()
            await database.close()

    asyncio.run(work())
    return str(event.request_id)


def test_a_row_has_the_keys_of_the_contract_and_its_charge_is_exact(
    kvitto: Any, customer: Any, cli_settings: Settings
) -> None:
    usage = TokenUsage(cache_hit=1_024, cache_owed=64, cache_write=0, cache_miss=112, output=7)
    request_id = settle(cli_settings, customer, usage, DAY)
    (row,) = kvitto("usage", "--tenant", customer["tenant"], "--json").told
    assert list(row) == COLUMNS
    assert row == {
        "request_id": request_id,
        "tenant": customer["tenant"],
        "key": "laptop",
        "model": MODEL,
        "rated_at": "2026-11-24T12:00:00Z",
        "status": "completed",
        "cache_hit": 1_024,
        "cache_owed": 64,
        "cache_write": 0,
        "cache_miss": 112,
        "output": 7,
        "charge": "0.000032872",
        "currency": "USD",
    }
    by_hand = (1_088 * Decimal("0.014") + 112 * Decimal("0.14") + 7 * Decimal("0.28")) / 1_000_000
    assert Decimal(row["charge"]) == by_hand
    (tenant,) = [
        each for each in kvitto("tenant", "list", "--json").told if each["name"] == customer["tenant"]
    ]
    assert Decimal(tenant["balance"]) == 1 - by_hand


def test_since_and_until_are_half_open_and_limit_takes_the_newest(
    kvitto: Any, customer: Any, cli_settings: Settings
) -> None:
    usage = TokenUsage(0, 0, 0, 10, 1)
    ids = [settle(cli_settings, customer, usage, DAY + timedelta(hours=hours)) for hours in range(4)]

    def shown(*words: str) -> list[str]:
        rows = kvitto("usage", "--tenant", customer["tenant"], "--json", *words).told
        return [row["request_id"] for row in rows]

    assert shown() == ids
    assert shown("--since", "2026-11-24T13:00Z", "--until", "2026-11-24T16:00+01:00") == ids[1:3]
    assert shown("--limit", "2") == ids[2:]
    assert shown("--since", "2027-01-01") == []


def test_usage_is_added_up_by_days_of_a_zone(kvitto: Any, customer: Any, cli_settings: Settings) -> None:
    """BerriAI/litellm#22176: Nov 24 is the 24th alone; 18:30 UTC is the 25th in India."""
    usage = TokenUsage(1, 0, 0, 10, 3)
    for hours in (0, 6, 7, 30):  # 12:00, 18:00, 19:00, and 18:00 a day later
        settle(cli_settings, customer, usage, DAY + timedelta(hours=hours))
    words = ("usage", "--tenant", customer["tenant"], "--by", "key,day", "--zone", "Asia/Kolkata", "--json")
    days = kvitto(*words, "--since", "2026-11-24", "--until", "2026-11-26").told
    assert [(row["key"], row["day"], row["requests"], row["output"]) for row in days] == [
        ("laptop", "2026-11-24T00:00:00+05:30", 2, 6),
        ("laptop", "2026-11-25T00:00:00+05:30", 2, 6),
    ]
    (first,) = kvitto(*words, "--since", "2026-11-24", "--until", "2026-11-25").told
    assert first == days[0]
    rows = kvitto("usage", "--tenant", customer["tenant"], "--json").told
    assert sum(Decimal(row["charge"]) for row in rows) == sum(Decimal(row["charge"]) for row in days)


@pytest.mark.parametrize(
    "words",
    [
        ("--by", "moon"),
        ("--by", "day", "--zone", "Mars"),
        ("--by", "day", "--limit", "1"),
        ("--by", "day", "--quarantined"),
    ],
)
def test_what_cannot_be_added_up_is_refused_in_a_line(kvitto: Any, words: tuple[str, ...]) -> None:
    ran = kvitto("usage", *words)
    assert ran.status != 0
    assert "Traceback" not in ran.err


def test_people_see_buckets_and_an_exact_total(kvitto: Any, customer: Any, cli_settings: Settings) -> None:
    for _ in range(3):
        settle(cli_settings, customer, TokenUsage(0, 0, 0, 1, 0), DAY)
    text = kvitto("usage", "--tenant", customer["tenant"]).out
    assert "0.00000014" in text
    assert "3 requests, 0.00000042 USD in all." in text
    assert "No usage" in kvitto("usage", "--since", "2027-01-01").out


@pytest.fixture
def api(cli_settings: Settings, customer: dict[str, Any]) -> Iterator[list[str]]:
    """An HTTP double that streams one answer under each id that the test puts in the list."""
    ids: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer("application/json", json.dumps({"data": [{"id": MODEL}]}).encode())

        def do_POST(self) -> None:
            assert json.loads(self.rfile.read(int(self.headers["content-length"])))["model"] == MODEL
            choice = {"index": 0, "delta": {"role": "assistant", "content": "Hej!"}, "finish_reason": "stop"}
            chunk = json.dumps({"choices": [choice], "usage": {"completion_tokens": 2}}).encode()
            self.answer("text/event-stream", b"data: " + chunk + b"\n\ndata: [DONE]\n\n")

        def answer(self, kind: str, body: bytes) -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.send_header("x-request-id", ids[-1])
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Tests read stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    credentials = {"base_url": f"http://127.0.0.1:{server.server_port}/v1", "api_key": customer["secret"]}
    Layout(cli_settings.data_dir).credentials.write_text(json.dumps(credentials))
    yield ids
    server.shutdown()
    thread.join()
    server.server_close()


def test_chat_prints_the_answer_then_what_it_cost(
    kvitto: Any, customer: Any, cli_settings: Settings, api: list[str]
) -> None:
    usage = TokenUsage(cache_hit=64, cache_owed=0, cache_write=0, cache_miss=6, output=2)
    api.append(settle(cli_settings, customer, usage, DAY))
    text = kvitto("chat", "Hej?").out
    assert text.startswith("Hej!\n")
    assert "price row smollm2-135m-instruct/USD/2025-01-01T00:00:00Z, window standard" in text
    assert "0.000002296 USD" in text
    assert "first token  after 0." in text

    told = kvitto("chat", "Hej?", "--json").told
    assert (told["text"], told["finish_reason"], told["usage"]) == ("Hej!", "stop", {"completion_tokens": 2})
    assert told["charge"] == told["charge_by_price_book"] == "0.000002296"
    assert told["rates"] == {"hit": "0.014", "miss": "0.14", "write": None, "output": "0.28"}
    assert (told["cache_hit"], told["cache_miss"], told["output"]) == (64, 6, 2)


def test_an_answer_without_a_usage_event_is_an_alarm(kvitto: Any, api: list[str]) -> None:
    api.append(str(mint(DAY, bytes(RANDOM_BYTES))))
    ran = kvitto("chat", "Hej?")
    assert ran.status == 1
    assert "has no usage event" in ran.err


def test_chat_before_the_first_up_says_what_to_do(kvitto: Any) -> None:
    ran = kvitto("chat", "Hej?")
    assert ran.status == 1
    assert ran.err.startswith("kvitto: no stack has run in ")
    assert "`kvitto up`" in ran.err


def test_usage_in_quarantine_is_shown_with_its_reason_and_what_was_signed(
    kvitto: Any, customer: Any, cli_settings: Settings
) -> None:
    request_id = mint(DAY, secrets.token_bytes(RANDOM_BYTES))
    put_aside = Quarantined(request_id, customer["tenant_id"], "5 output tokens of no call", '{"signed": 1}')

    async def work() -> None:
        database = Database(cli_settings.database_url, pool_size=1)
        await Settlement(database).quarantine(put_aside)
        await database.close()

    asyncio.run(work())
    (row,) = kvitto("usage", "--quarantined", "--tenant", customer["tenant"], "--json").told
    assert list(row) == ["request_id", "tenant", "recorded_at", "reason", "attestation"]
    assert (row["request_id"], row["tenant"]) == (str(request_id), customer["tenant"])
    assert (row["reason"], row["attestation"]) == (put_aside.reason, put_aside.attestation)
    assert put_aside.reason in kvitto("usage", "--quarantined", "--tenant", customer["tenant"]).out
    assert kvitto("usage", "--tenant", customer["tenant"], "--json").told == []


def test_a_request_that_the_books_do_not_have_is_named(
    kvitto: Any, customer: dict[str, Any], cli_settings: Settings
) -> None:
    """BerriAI/litellm#13280, on the command line."""
    usage = TokenUsage(cache_hit=0, cache_owed=0, cache_write=0, cache_miss=10, output=0)
    day = ("--since", "2026-11-24", "--until", "2026-11-25")
    assert "The books have all" in kvitto("audit", "receipts", "--since", "1h").out
    billed = settle(cli_settings, customer, usage, DAY)
    lost = str(mint(DAY, secrets.token_bytes(RANDOM_BYTES)))
    attest(cli_settings, lost)
    ran = kvitto("audit", "receipts", *day, "--json")
    (found,) = [row for row in json.loads(ran.out) if row["request_id"] == lost]
    assert ran.status == 1
    assert (found["workers"], found["finding"]) == ("p7", "the books do not have it")
    assert billed not in ran.out
