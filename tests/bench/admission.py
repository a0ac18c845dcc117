"""What an admission costs: twelve limits, two budgets and a hold in one script, coalesced as under load."""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from admin.stack import process, valkey
from billing.ledger.balance import BalanceVersion
from billing.money import Femto
from billing.reports.usage_row import Use
from billing.tenancy.limits import Budget, Level, Limit, Measure
from gateway.admission.admit import Admission
from gateway.admission.hold import Hold, Spent
from gateway.admission.limits import DAY, Demand, counted
from gateway.instant import ValkeyClock
from gateway.valkey import Valkey
from tests.bench.row import Row

TENANT, MODEL, USER = "ten_0123456789abcdef01234567", "smollm2-135m-instruct", "user-42"
AT_ONCE = 256  # requests of one loop tick
ROUNDS = 20
CLIENT_US_MAX = 150.0
PLENTY = 10**11
OWNERS: tuple[tuple[Level, str], ...] = (
    ("tenant", TENANT),
    ("project", "prj_0123456789abcdef"),
    ("key", "key_0123456789abcdef"),
)
MEASURES: tuple[Measure, ...] = (
    "requests_per_minute",
    "input_tokens_per_minute",
    "output_tokens_per_minute",
    "tokens_per_day",
    "concurrent",
)


def limits() -> list[Limit]:
    """Twelve: all of the key, a minute's of the project, some of the tenant, a model's, a user's."""
    (tenant, project, key) = OWNERS
    return [
        *(Limit(*key, measure, PLENTY) for measure in MEASURES),
        *(Limit(*project, measure, PLENTY) for measure in MEASURES[:3]),
        *(Limit(*tenant, measure, PLENTY) for measure in MEASURES[3:]),
        Limit(*tenant, "input_tokens_per_minute", PLENTY, model=MODEL, cached_free=True),
        Limit(*tenant, "requests_per_minute", PLENTY, per_user=True),
    ]


def budgets() -> tuple[Budget, ...]:
    """A hard one of the month and a soft one of the day."""
    return (
        Budget("bud_0123456789abcdef", "tenant", TENANT, Femto(10**24), "monthly", "Asia/Shanghai"),
        Budget("bud_0123456789abcdee", "key", OWNERS[2][1], Femto(10**24), "daily", "UTC", hard=False),
    )


@contextmanager
def server() -> Iterator[str]:
    """A Valkey of its own; yields its URL."""
    with tempfile.TemporaryDirectory(prefix="kv-", dir="/tmp") as folder:
        path = Path(folder)
        made, password = valkey.locate(path, path / "v", expendable=True), valkey.generate_password()
        made.prepare(password)
        with (path / "log").open("wb") as log:
            child = process.spawn(made.command(), log)

        async def ready() -> None:
            while not await made.ready(password, child.pid):
                await asyncio.sleep(0.01)

        try:
            asyncio.run(ready())
            yield made.url(password)
        finally:
            asyncio.run(process.stop(child, 15, 10.0))


async def _script_us(client: Valkey) -> float:
    """Mean time of a script in the server since this was last asked."""
    stats = await client.call("INFO", "commandstats")
    await client.call("CONFIG", "RESETSTAT")
    return float(stats["cmdstat_evalsha"]["usec_per_call"])


async def _measure(
    url: str, of: list[Limit], paid_from: tuple[Budget, ...]
) -> tuple[float, float, float, float]:
    """Microseconds a request: client's CPU and the server's script, of admission, then of release."""
    client = Valkey.connect(url)
    admission = Admission(client)
    await client.call("FLUSHALL")
    await admission.project(BalanceVersion(TENANT, Femto(10**24), 1))
    now = await ValkeyClock(client).now()
    for budget in paid_from:
        await admission.project_budget(TENANT, budget, Use(Femto(0), 0, 1), now)
    for one in counted(of, MODEL, USER):
        if one.letter == DAY:
            await admission.project_day(TENANT, one, 0)

    async def admit() -> Hold:
        demand = Demand(2000, 500, counted(of, MODEL, USER), paid_from)
        return await admission.admit(TENANT, Femto(10**12), demand)

    async def release(hold: Hold) -> bool:
        spent = Spent(Femto(10**11), hold.admitted_at, 2000, 1000, 100)
        return await admission.release(hold, BalanceVersion(TENANT, Femto(10**24), 2), spent)

    admitting, admit_us, releasing, release_us = [], [], [], []
    for _ in range(ROUNDS + 1):
        began_s = time.process_time()
        holds = await asyncio.gather(*(admit() for _ in range(AT_ONCE)))
        admitting.append((time.process_time() - began_s) / AT_ONCE * 1e6)
        admit_us.append(await _script_us(client))
        began_s = time.process_time()
        await asyncio.gather(*map(release, holds))
        releasing.append((time.process_time() - began_s) / AT_ONCE * 1e6)
        release_us.append(await _script_us(client))
    await client.close()
    each = (admitting, admit_us, releasing, release_us)
    admit_s, admit_script, release_s, release_script = (median(times[1:]) for times in each)
    return admit_s, admit_script, release_s, release_script


def measure() -> list[Row]:
    """With all limits, and with the hold alone to compare."""
    with server() as url:
        full = asyncio.run(_measure(url, limits(), budgets()))
        bare = asyncio.run(_measure(url, [], ()))
    what = f"{len(limits())} limits, {len(budgets())} budgets, a hold"
    at_once = f"{AT_ONCE} at once, median of {ROUNDS} rounds"
    return [
        Row(f"admission with {what}: client's CPU", full[0], "us", CLIENT_US_MAX, at_once),
        Row("admission with a hold alone: client's CPU", bare[0], "us"),
        Row("release of the first: client's CPU", full[2], "us"),
        Row(
            f"admission with {what}: script in the server",
            full[1],
            "us",
            remark=f"hold alone {bare[1]:.1f} µs",
        ),
        Row(
            "release of the first: script in the server", full[3], "us", remark=f"hold alone {bare[3]:.1f} µs"
        ),
    ]
