"""A stack as its users reach it: the command line and HTTP; and its inside, where a promise is about that."""

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar
from uuid import UUID

import httpx
import openai
import psutil

from admin.settings import Settings
from admin.stack import state
from admin.stack.supervisor import connect
from billing.db.transaction import Database
from billing.ledger.service import Ledger
from billing.receipts.receipt import Receipt
from billing.receipts.service import Receipts
from gateway.valkey import Valkey

ROOT = Path(__file__).resolve().parents[2]
MODEL = "smollm2-135m-instruct"
PAIR = ("--prefill", "1", "--decode", "1")
UP_TIMEOUT_S = 240
COMMAND_TIMEOUT_S = 60
LOOK_INTERVAL_S = 0.2
TOKENS_PER_RATE = 1_000_000
Result = TypeVar("Result")


@dataclass(frozen=True)
class Tenant:
    """A tenant of a test: its names, what it was granted, its key, and a client that uses it."""

    id: str
    name: str
    credit: Decimal
    key_id: str
    secret: str
    client: openai.OpenAI


@dataclass(frozen=True)
class Reply:
    """What a client saw of one completed request."""

    request_id: str
    text: str
    finish_reason: str
    hit: int
    miss: int
    prompt: int
    output: int


@dataclass(frozen=True, eq=False)
class Stack:
    """The stack under test, reached as its users reach it: the command line and HTTP."""

    data_dir: Path
    port: int
    environment: dict[str, str]

    # -- the command line

    def kvitto(self, *words: str, timeout_s: int = COMMAND_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
        """Run a command; the caller looks at its exit status."""
        return subprocess.run(
            [sys.executable, "-m", "admin.cli.main", *words, "--data-dir", str(self.data_dir)],
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def done(self, *words: str, timeout_s: int = COMMAND_TIMEOUT_S) -> str:
        """Run a command that must work; its stdout."""
        ran = self.kvitto(*words, timeout_s=timeout_s)
        assert ran.returncode == 0, f"kvitto {' '.join(words)}: {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
        return ran.stdout

    def told(self, *words: str) -> Any:
        """Run a command with --json; what it tells."""
        return json.loads(self.done(*words, "--json"))

    def up(self, *shape: str) -> str:
        return self.done("up", "--detach", "--port", str(self.port), *shape, timeout_s=UP_TIMEOUT_S)

    def down(self) -> str:
        return self.done("down", timeout_s=UP_TIMEOUT_S)

    def parts(self) -> dict[str, dict[str, Any]]:
        """The parts by name, whether or not all are ready."""
        return {part["name"]: part for part in json.loads(self.kvitto("status", "--json").stdout)["parts"]}

    @property
    def ready(self) -> bool:
        """Whether all parts are, by the supervisor's own account."""
        return all(part.state == "ready" for part in state.read(self.data_dir).parts)

    # -- its users

    def tenant(self, credit: str = "1") -> Tenant:
        """A new tenant with granted credit and a key."""
        name = f"t-{secrets.token_hex(4)}"
        made = self.told("tenant", "create", name)
        if Decimal(credit):
            self.told("credit", "grant", name, credit)
        key = self.told("key", "create", name)
        return Tenant(made["id"], name, Decimal(credit), key["id"], key["secret"], self.client(key["secret"]))

    @property
    def credentials(self) -> dict[str, Any]:
        return dict(json.loads((self.data_dir / "credentials.json").read_bytes()))

    def client(self, secret: str) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=self.credentials["base_url"], api_key=secret, max_retries=0, timeout=120
        )

    def http(self, secret: str | None = None) -> httpx.Client:
        """Plain HTTP at the root of the API."""
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        return httpx.Client(
            base_url=self.credentials["base_url"].removesuffix("/v1"), headers=headers, timeout=60
        )

    def ask(self, tenant: Tenant, text: str, max_tokens: int = 16, **more: Any) -> Reply:
        """One greedy answer, not streamed."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "temperature": 0} | more
        raw = tenant.client.chat.completions.with_raw_response.create(max_tokens=max_tokens, **body)
        parsed = raw.parse()
        choice = parsed.choices[0]
        return reply_of(
            raw.headers["x-request-id"], choice.message.content or "", choice.finish_reason, parsed.usage
        )

    def ask_streamed(self, tenant: Tenant, text: str, max_tokens: int = 16, **more: Any) -> Reply:
        """One greedy answer, streamed; the usage is what the client saw last."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "temperature": 0} | more
        options = {"include_usage": True}
        raw = tenant.client.chat.completions.with_raw_response.create(
            max_tokens=max_tokens, stream=True, stream_options=options, **body
        )
        pieces, finishes, usages = [], [], []
        for chunk in raw.parse():
            usages += [chunk.usage] if chunk.usage else []
            for choice in chunk.choices:
                pieces.append(choice.delta.content or "")
                finishes += [choice.finish_reason] if choice.finish_reason else []
        assert len(finishes) == 1, finishes
        return reply_of(raw.headers["x-request-id"], "".join(pieces), finishes[0], usages[-1])

    # -- its books

    def usage(self, tenant: Tenant) -> list[dict[str, Any]]:
        return list(self.told("usage", "--tenant", tenant.name))

    def event(self, tenant: Tenant, request_id: str) -> dict[str, Any]:
        (row,) = [row for row in self.usage(tenant) if row["request_id"] == request_id]
        return row

    def charge_by_hand(self, reply: Reply, event: dict[str, Any]) -> Decimal:
        """What the client computes: its own usage fields times the price book at the instant of the event."""
        rates = self.rates_of(event)
        sums = reply.hit * rates["hit"] + reply.miss * rates["miss"] + reply.output * rates["output"]
        return sums / TOKENS_PER_RATE

    def rates_of(self, event: dict[str, Any]) -> dict[str, Decimal]:
        """Rates per 1M tokens at the instant of an event."""
        return self.rates(event["model"], event["currency"], event["rated_at"][: len("2026-12-01T12:00")])

    @cache  # noqa: B019 -- one stack a session; published prices never change, windows only on whole minutes
    def rates(self, model: str, currency: str, minute: str) -> dict[str, Decimal]:
        """Rates per 1M tokens in a minute (UTC), as the command line states them."""
        (price,) = self.told("price", "show", model, "--currency", currency, "--at", minute)
        return {bucket: Decimal(rate or 0) for bucket, rate in price["rates"].items()}

    def balance(self, tenant: Tenant) -> Decimal:
        """The balance as the tenant reads it over the API."""
        with self.http(tenant.secret) as http:
            answer = http.get("/user/balance")
        assert answer.status_code == 200, answer.text
        (line,) = answer.json()["balance_infos"]
        return Decimal(line["total_balance"])

    def balance_in_books(self, tenant: Tenant) -> Decimal:
        (row,) = [row for row in self.told("tenant", "list") if row["id"] == tenant.id]
        return Decimal(row["balance"])

    def faults_in_ledger(self) -> list[str]:
        """What the ledger's audit finds: transactions that are not zero, balances that are no projection."""
        return self.in_books(lambda database: Ledger(database).check_integrity())

    def in_books(self, work: Callable[[Database], Awaitable[Result]]) -> Result:
        """Run work on the stack's database."""

        async def run() -> Result:
            database = Database(self.settings.database_url, pool_size=1)
            try:
                return await work(database)
            finally:
                await database.close()

        return asyncio.run(run())

    def receipt(self, request_id: str) -> Receipt:
        """What was billed of a request and what workers attest of it."""
        return self.receipts([request_id])[request_id]

    def receipts(self, request_ids: Sequence[str]) -> dict[str, Receipt]:
        """Receipts by request id."""
        ids = [UUID(request_id) for request_id in request_ids]
        found = self.in_books(lambda database: Receipts(database).of(ids))
        return {str(request_id): receipt for request_id, receipt in found.items()}

    # -- its inside, where a promise is about the inside

    @property
    def settings(self) -> Settings:
        return connect(self.data_dir)

    def open_holds(self, tenant: Tenant) -> int:
        return self.open_holds_of(tenant.id)

    def open_holds_of(self, tenant_id: str) -> int:
        async def count() -> int:
            valkey = Valkey.connect(self.settings.valkey_url)
            try:
                return int(await valkey.call("HLEN", f"kv:{{{tenant_id}}}:holds"))
            finally:
                await valkey.close()

        return asyncio.run(count())

    def requests_in_workers(self) -> int:
        """Requests that vLLM itself says it runs or has waiting, over all workers."""
        return sum(self._requests_in(worker.socket) for worker in self.settings.workers)

    def _requests_in(self, worker_socket: Path) -> int:
        counted = gauges_of(worker_socket, "vllm:num_requests_running", "vllm:num_requests_waiting{")
        return int(sum(counted))

    def kv_blocks_in_use(self) -> dict[str, int]:
        """Blocks of the KV cache that are not free, by worker; cached ones that nobody uses are free."""
        return {
            worker.name: int(sum(gauges_of(worker.socket, "kvitto_kv_blocks_in_use")))
            for worker in self.settings.workers
        }

    def processes(self) -> list[psutil.Process]:
        """Every process of the stack now."""
        roots = [psutil.Process(part["pid"]) for part in self.parts().values() if part["pid"]]
        return [process for root in roots for process in (root, *root.children(recursive=True))]

    def until(self, look: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
        """Look again and again until it is so; fails when it never is."""
        deadline, pause = monotonic() + timeout_s, threading.Event()
        while not look():
            assert monotonic() < deadline, f"not in {timeout_s} s: {what}"
            pause.wait(LOOK_INTERVAL_S)


def gauges_of(worker_socket: Path, *names: str) -> list[float]:
    """Values of a worker's metrics whose lines begin so; at least one."""
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(worker_socket)), timeout=10) as http:
        lines = http.get("http://worker/metrics").text.splitlines()
    values = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(names)]
    assert values, f"the worker has no metric {names}"
    return values


def lives(process: psutil.Process) -> bool:
    """A zombie has ended: only its parent, here the machine's init, has not asked for its status yet."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it has just ended
        return False


def reply_of(request_id: str, text: str, finish_reason: str, usage: Any) -> Reply:
    fields = usage.model_dump()
    hit, miss = fields["prompt_cache_hit_tokens"], fields["prompt_cache_miss_tokens"]
    assert fields["prompt_tokens_details"]["cached_tokens"] == hit
    assert hit + miss == fields["prompt_tokens"]
    assert fields["total_tokens"] == fields["prompt_tokens"] + fields["completion_tokens"]
    return Reply(
        request_id, text, finish_reason, hit, miss, fields["prompt_tokens"], fields["completion_tokens"]
    )


@contextlib.contextmanager
def housed(model_dir: Path | None = None, **environment: str) -> Iterator[Stack]:
    """A stack on a data directory that does not exist yet; taken down and removed at the end.

    Not under pytest's own folder: root keeps that from the account that runs Postgres. With ``model_dir`` the
    stack finds its model made, else it makes it.
    """
    folder = Path(tempfile.mkdtemp(prefix="kvitto-e2e-"))
    folder.chmod(0o711)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("KVITTO_")}
    made = Stack(folder / "state", free_port(), {**clean, "NO_COLOR": "1", **environment})
    if model_dir is not None:
        made.data_dir.mkdir(mode=0o711)
        (made.data_dir / "models").symlink_to(model_dir.parent)
    try:
        yield made
    finally:
        made.kvitto("down", timeout_s=UP_TIMEOUT_S)
        shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
