"""A generated month: both DeepSeek window schemes, changing prices, tiers, owed tokens, two currencies.

Its instants lie on the edges where reports go wrong (windows, price rows, days, a change of clocks, the
month's own) and anywhere between, always the same for one seed.
"""

import random
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from uuid import uuid4

from billing.interval import Interval
from billing.pricing.book import PriceBook, PriceRow
from billing.pricing.rates import Rates
from billing.pricing.rating import rate
from billing.pricing.window import Window
from billing.request_id import RANDOM_BYTES, mint
from billing.settlement.event import UsageEvent
from billing.settlement.posting import post
from billing.tenancy.projects.service import Projects
from billing.usage import TokenUsage
from engine.proof.coverage import Attempt

ZONE = "Europe/Berlin"  # clocks go back on 25 October 2026 at 01:00 UTC
MONTH = Interval.of_days(date(2026, 10, 1), date(2026, 10, 31), ZONE)
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
CHANGED = datetime(2026, 10, 15, 16, 0, tzinfo=UTC)
OWN_FROM = datetime(2026, 10, 10, 7, 0, tzinfo=UTC)
CLOCKS = datetime(2026, 10, 25, 1, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)
OLD, NEW = "chat", "v4-flash"
COMPANY = "=cmd|'/C calc'!A0, \"Ltd\"\n租户"
KEYS = ("+1,5", "@SUM(A1)", '"quoted", and\r\nbroken', "－full width", "plain")


def _rates(scale: int) -> Rates:
    flex = Rates(scale * 5_000, scale * 97_000, scale * 301_000, write=scale * 150_001)
    return Rates(scale * 7_001, scale * 140_003, scale * 420_009, write=scale * 200_003, flex=flex)


def _row(model: str, currency: str, at: datetime, scale: int, windows: tuple[Window, ...] = ()) -> PriceRow:
    instant, named = ("completed", "standard") if model == OLD else ("admitted", "offpeak")
    return PriceRow(model, currency, at, instant, _rates(scale), windows, named)  # type: ignore[arg-type]  plain texts


def book() -> PriceBook:
    """The public prices."""
    night = (Window("offpeak", _rates(5), time(16, 30), time(0, 30), "UTC"),)
    peaks = tuple(
        Window("peak", _rates(14), time(first), time(last), "Asia/Shanghai")
        for first, last in ((9, 12), (14, 18))
    )
    rows = (
        _row(OLD, "USD", BEGAN, 10, night),
        _row(OLD, "USD", CHANGED, 11),
        *(_row(NEW, currency, BEGAN, 7, peaks) for currency in ("USD", "CNY")),
        *(_row(NEW, currency, CHANGED, 9, peaks) for currency in ("USD", "CNY")),
    )
    return PriceBook(rows)


@dataclass(frozen=True)
class Month:
    """Two tenants, each of one currency, and all that they used."""

    house: Any
    other: Any
    events: list[UsageEvent]
    projects: dict[str, str]  # of keys

    def of(self, tenant_id: str) -> list[UsageEvent]:
        return [event for event in self.events if event.tenant_id == tenant_id]

    async def settle(self) -> None:
        await post(self.house.database, self.events)


async def generated(house: Any, seed: int, requests: int = 120) -> Month:
    """Of two new tenants; the first has a price of its own from the middle of the month on."""
    draw = random.Random(seed)  # noqa: S311  nothing secret
    await house.prices.publish(book(), "test", BEGAN - timedelta(days=1))
    houses, projects = [], {}
    for name, currency in ((COMPANY, "USD"), ("+Søn", "CNY")):
        tenant = await house.tenancy.create_tenant(f"{name} {uuid4()}", currency, at=BEGAN, tz=ZONE)
        keys = []
        for number, key in enumerate(KEYS):
            home = "default"
            if number % 2:
                home = (await Projects(house.database).create(tenant.id, f"-{number}", BEGAN, actor="t")).id
            issued = await house.tenancy.create_key(tenant.id, key, BEGAN, project=home)
            keys.append(issued.key.id)
            projects[issued.key.id] = issued.key.project_id
        houses.append((replace(house, tenant_id=tenant.id, key_id=keys[0]), keys, currency))
    first = houses[0][0]
    own = replace(
        _row(OLD, "USD", OWN_FROM, 6), tenant_id=first.tenant_id, effective_until=CHANGED + timedelta(days=5)
    )
    await house.prices.publish(PriceBook((own,)), "test", BEGAN - timedelta(days=1))
    published = await house.prices.book()
    events = []
    for number, at in enumerate(_instants(draw, requests)):
        one, keys, currency = houses[number % 3 == 0]
        events.append(_event(draw, one, draw.choice(keys), (published, currency), at))
    return Month(first, houses[1][0], events, projects)


def _instants(draw: random.Random, requests: int) -> Iterable[datetime]:
    edges = [
        MONTH.since,
        MONTH.until - timedelta(microseconds=1),
        *(CHANGED + n * SECOND for n in (-1, 0)),
        *(OWN_FROM + n * SECOND for n in (-1, 0)),
        *(CLOCKS + timedelta(minutes=n) for n in (-61, -30, -1, 0, 30, 59, 60)),
        *(datetime(2026, 10, 12, hour, minute, tzinfo=UTC) for hour in (0, 16) for minute in (29, 30)),
        *(datetime(2026, 10, 13, hour, tzinfo=UTC) for hour in (1, 4, 6, 10)),
        MONTH.since - SECOND,
        MONTH.until,
    ]
    length = (MONTH.until - MONTH.since).total_seconds()
    drawn = (MONTH.since + timedelta(seconds=draw.randrange(int(length))) for _ in range(requests))
    return [each for edge in edges for each in (edge,) * 3] + list(drawn)


def _event(
    draw: random.Random, house: Any, key_id: str, priced: tuple[PriceBook, str], at: datetime
) -> UsageEvent:
    status = draw.choice(("completed", "completed", "completed", "aborted", "failed"))
    usage = TokenUsage.none()
    if status != "failed":
        output = draw.choice((0, 1, draw.randrange(9_000)))
        usage = TokenUsage(
            *(draw.choice((0, draw.randrange(99_999))) for _ in range(3)), 1 + draw.randrange(99), output
        )
    published, currency = priced
    model = NEW if currency == "CNY" else draw.choice((OLD, NEW))
    tier = draw.choice(("standard", "standard", "flex"))
    return replace(
        house.event(at=at),
        request_id=mint(at, secrets.token_bytes(RANDOM_BYTES)),
        key_id=key_id,
        model=model,
        status=status,
        usage=usage,
        reasoning_tokens=usage.output // 3,
        charge=rate(published.of(house.tenant_id), model, currency, usage, at, tier),
        traffic_class=draw.choice(("chat", "agent")),
        attempts=(Attempt(0, "both", "w", 0, usage.output),) if usage.prompt else (),
        attestations=(),
    )


def charges(events: Iterable[UsageEvent], key: Callable[[UsageEvent], Any]) -> dict[Any, int]:
    """Femto-units by what a key says of events, and by currency, of the month alone."""
    sums: dict[Any, int] = {}
    for event in events:
        if MONTH.since <= event.rated_at < MONTH.until:
            group = (key(event), event.charge.currency)
            sums[group] = sums.get(group, 0) + event.charge.amount
    return sums
