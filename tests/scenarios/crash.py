"""A crash storm: clients that ask again, while gateways and Postgres die, parts stop, and Valkey is wiped."""

import asyncio
import random
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from time import monotonic
from typing import Final

import httpx

from admin import clock
from billing.db.transaction import Database
from billing.ledger.credit import Grant
from billing.ledger.service import Ledger
from billing.money import femto_of
from billing.tenancy.service import Tenancy
from tests.chaos.client import Question
from tests.chaos.faults import Blow
from tests.e2e.letters import letter
from tests.e2e.stack import MODEL, Stack
from tests.scenarios import faults
from tests.scenarios.client import Errand, key_name

SHAPE: Final = ("--mono", "1", "--gateways", "2")
CLIENTS: Final = 8
TENANTS: Final = 2
CREDIT: Final = "100"
TEXTS: Final = 12
LINES: Final = (0, 0, 1, 3)  # of some 26 tokens: the longest fill a block, which others hit
ANSWER_TOKENS: Final = (1, 2, 4, 8, 16)
WAIT_S: Final = 30.0
LASTS_S: Final = 35.0


@dataclass(frozen=True, slots=True)
class Client:
    """One client of a tenant (its id, its name), with a key of its own: its requests are told by that."""

    number: int
    tenant_id: str
    tenant: str
    secret: str

    @property
    def keyed(self) -> bool:
        """Whether it sends idempotency keys; the others ask again silently."""
        return self.number % 2 == 0


@dataclass(slots=True)
class Crash:
    """What happened."""

    seed: int
    begun_at: datetime
    clients: list[Client]
    errands: list[Errand] = field(default_factory=list)
    blows: list[Blow] = field(default_factory=list)

    @property
    def tenants(self) -> dict[str, str]:
        """Their names, by id."""
        return {client.tenant_id: client.tenant for client in self.clients}

    def counted(self) -> str:
        """In one line, for people."""
        seen = [each for errand in self.errands for each in errand.seen]
        endings = Counter(each.ending for each in seen)
        errors = Counter(each.error[: each.error.find(" ")] for each in seen if each.ending == "error")
        blows = Counter(blow.what for blow in self.blows)
        return (
            f"seed {self.seed}: {len(self.errands)} errands, {len(seen)} requests: {_listed(endings)};"
            f" answers given again {sum(each.replayed for each in seen)}; {_listed(errors)}; {_listed(blows)}"
        )


def prepare(stack: Stack, seed: int) -> Crash:
    """Make tenants with credit, and each client's key."""
    begun_at, pepper = clock.now(), stack.settings.key_pepper

    async def make(database: Database) -> list[Client]:
        tenancy, ledger, clients = Tenancy(database, pepper), Ledger(database), list[Client]()
        for first in range(0, CLIENTS, CLIENTS // TENANTS):
            tenant = await tenancy.create_tenant(f"t-{secrets.token_hex(4)}", at=begun_at)
            await ledger.grant(tenant.id, Grant(femto_of(CREDIT), "granted", "test", "test"), begun_at)
            for number in range(first, first + CLIENTS // TENANTS):
                issued = await tenancy.create_key(tenant.id, key_name(number), begun_at)
                clients.append(Client(number, tenant.id, tenant.name, issued.secret))
        return clients

    return Crash(seed, begun_at, stack.in_books(make))


async def rage(stack: Stack, crash: Crash, lasts_s: float, tell: Callable[[float], None]) -> None:
    """Let the clients ask one thing after the other for so long, and on until each has had an answer."""
    ends_s = monotonic() + lasts_s
    base_url = stack.credentials["base_url"]

    async def live(client: Client) -> None:
        chosen = random.Random(f"{crash.seed} {client.number}")  # noqa: S311 -- repeatable, no secret
        async with httpx.AsyncClient(base_url=base_url, timeout=WAIT_S) as http:
            answered = False
            while not answered or monotonic() < ends_s:
                errand = _errand(crash, client, chosen)
                crash.errands.append(errand)
                await errand.run(http, MODEL, monotonic)
                answered |= errand.seen[-1].ending == "complete"
                tell(monotonic())

    clients = (live(client) for client in crash.clients)
    await asyncio.gather(faults.blow(stack, crash.seed, lasts_s, crash.blows), *clients)


def _errand(crash: Crash, client: Client, chosen: random.Random) -> Errand:
    number = len(crash.errands)
    question = Question(
        number=number,
        tenant=client.tenant_id,
        secret=client.secret,
        text=letter(crash.seed * 100 + chosen.randrange(TEXTS), chosen.choice(LINES)),
        max_tokens=chosen.choice(ANSWER_TOKENS),
        streamed=chosen.random() < 0.6,
        leave_s=chosen.uniform(0.02, 1.0) if chosen.random() < 0.1 else None,
    )
    key = f"{crash.seed}-{number}" if client.keyed else None
    return Errand(client.number, question, key)


def _listed(counted: Counter[str]) -> str:
    return ", ".join(f"{what} {count}" for what, count in sorted(counted.items()))
