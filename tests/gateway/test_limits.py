"""Limits against a real Valkey: all or none with the hold, exact, given back once, gone by themselves."""

import asyncio
import random
import secrets
from datetime import datetime, timedelta
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from billing.ledger.balance import BalanceVersion
from billing.money import Femto
from gateway.admission.admit import Admission
from gateway.admission.hold import Hold, Spent
from gateway.admission.leases import Leases
from gateway.admission.limits import AMOUNT_MAX, Demand
from gateway.admission.quota import Left, duration
from gateway.refusal import BalanceInsufficient, LimitReached, ProjectionMissing
from gateway.valkey import Script, Valkey
from tests.gateway.conftest import until
from tests.gateway.limiting import (
    KEY,
    MINUTE_US,
    MODEL,
    PRELUDE,
    RICH,
    TENANT,
    bucket,
    demand,
    limit,
    rich,
    tried,
)

DAY_US: Final = 86_400_000_000


@pytest.fixture
async def admission(valkey: Valkey) -> Admission:
    return await rich(Admission(valkey, lease_s=30.0))


async def keys(valkey: Valkey) -> list[str]:
    return sorted(await valkey.call("KEYS", "*limit:*"))


async def test_five_at_once_never_pass_100_tokens_a_minute(admission: Admission) -> None:
    """BerriAI/litellm#18730: of 58, 80, 175, 175, 175 tokens the sum of what is admitted is at most 100."""
    per_minute = limit("input_tokens_per_minute", 100)
    sizes = (58, 80, 175, 175, 175)
    holds = await asyncio.gather(*(tried(admission, demand(per_minute, tokens=(size, 1))) for size in sizes))
    admitted = [size for size, hold in zip(sizes, holds, strict=True) if hold]
    assert admitted == [58]


async def test_cached_tokens_are_given_back_when_prefill_answers(admission: Admission) -> None:
    """BerriAI/litellm#18728: 10K tokens a minute, each request 10K of which 8K cached, are five a minute."""
    asked = demand(limit("input_tokens_per_minute", 10_000, cached_free=True), tokens=(10_000, 1))
    hold = await admission.admit(TENANT, Femto(1), asked)
    with pytest.raises(LimitReached) as full:
        await admission.admit(TENANT, Femto(1), asked)
    assert full.value.retry_after_s in (59, 60)
    assert await admission.prefilled(hold, 8_000)
    assert await admission.prefilled(hold, 8_000)  # again gives nothing more
    with pytest.raises(LimitReached) as refused:
        await admission.admit(TENANT, Femto(1), asked)
    assert refused.value.retry_after_s in (11, 12)


async def test_a_refused_request_has_taken_nothing_of_any_limit(admission: Admission) -> None:
    """BerriAI/litellm#39309: 1 a minute, 1 at a time: B, refused for concurrency, still has the minute's."""
    one_at_a_time = limit("concurrent", 1, level="tenant", owner_id=TENANT)
    of_b = demand(limit("requests_per_minute", 1), one_at_a_time)
    a = await admission.admit(TENANT, Femto(1), demand(one_at_a_time))
    with pytest.raises(LimitReached) as refused:
        await admission.admit(TENANT, Femto(1), of_b)
    assert refused.value.limit == one_at_a_time
    await admission.void(a)
    await admission.admit(TENANT, Femto(1), of_b)


async def test_a_refused_hold_takes_no_limit_and_a_refused_limit_no_hold(
    admission: Admission, valkey: Valkey
) -> None:
    asked = demand(limit("requests_per_minute", 1), limit("concurrent", 5))
    with pytest.raises(BalanceInsufficient):
        await admission.admit(TENANT, Femto(RICH + 1), asked)
    assert await keys(valkey) == []
    hold = await admission.admit(TENANT, Femto(1), asked)
    with pytest.raises(LimitReached):
        await admission.admit(TENANT, Femto(1), asked)
    assert (await admission.held(TENANT)).holds == {str(hold.request_id): 1}


async def test_a_slot_is_a_lease_that_expires_and_is_released_once(valkey: Valkey) -> None:
    """BerriAI/litellm#27955, BerriAI/litellm#20256: cancel, timeout and crash all end the use of a slot."""
    brief, lasting = await rich(Admission(valkey, lease_s=0.0)), Admission(valkey, lease_s=30.0)
    asked = demand(limit("concurrent", 1))
    crashed = await brief.admit(TENANT, Femto(1), asked)
    first = await lasting.admit(TENANT, Femto(1), asked)
    assert await tried(lasting, asked) is None
    assert await lasting.void(first)
    second = await lasting.admit(TENANT, Femto(1), asked)
    assert not await lasting.void(first)  # a second release frees nobody else's slot
    assert await lasting.void(crashed)
    assert await tried(lasting, asked) is None
    assert await lasting.void(second)


async def test_slots_are_renewed_with_their_holds(valkey: Valkey) -> None:
    brief, lasting = await rich(Admission(valkey, lease_s=0.2)), Admission(valkey, lease_s=30.0)
    asked = demand(limit("concurrent", 1))
    hold = await brief.admit(TENANT, Femto(1), asked)
    leases = Leases(lasting, 10.0)
    leases.keep(hold)
    await leases.renew()

    async def over() -> bool:
        seconds, _ = await valkey.call("TIME")
        return int(seconds) > hold.admitted_at.timestamp() + 0.3

    await until(over)
    assert await tried(lasting, asked) is None


async def test_zero_allows_none_and_absent_allows_all(admission: Admission) -> None:
    for measure in (
        "requests_per_minute",
        "input_tokens_per_minute",
        "output_tokens_per_minute",
        "concurrent",
    ):
        with pytest.raises(LimitReached) as refused:
            await admission.admit(TENANT, Femto(0), demand(limit(measure, 0), tokens=(0, 0)))
        assert refused.value.never
        assert 0 < refused.value.retry_after_s <= 60
    for _ in range(50):
        await admission.admit(TENANT, Femto(0), demand(tokens=(10**9, 10**9)))


async def test_reserved_output_is_given_back_at_release_and_input_that_was_used_is_not(
    admission: Admission,
) -> None:
    limits = limit("output_tokens_per_minute", 1000), limit("input_tokens_per_minute", 1000)
    hold = await admission.admit(TENANT, Femto(1), demand(*limits, tokens=(400, 1000)))
    assert await tried(admission, demand(limits[0], tokens=(1, 100))) is None
    spent = Spent(Femto(1), hold.admitted_at, 400, 0, 100)
    assert await admission.release(hold, BalanceVersion(TENANT, RICH, 2), spent)
    assert await tried(admission, demand(limits[1], tokens=(700, 1))) is None
    assert await tried(admission, demand(*limits, tokens=(600, 890)))


@pytest.mark.parametrize(
    ("measure", "fields", "kept"),
    [
        ("input_tokens_per_minute", {}, 300),
        ("input_tokens_per_minute", {"cached_free": True}, 100),
        ("output_tokens_per_minute", {}, 40),
        ("tokens_per_day", {"per_user": True}, 340),
    ],
)
async def test_a_release_leaves_in_each_bucket_what_its_request_used_and_what_others_took(
    admission: Admission, valkey: Valkey, measure: str, fields: dict[str, Any], kept: int
) -> None:
    asked = demand(limit(measure, 1, **fields), tokens=(300, 500))
    amount = 1000 * asked.cost(asked.limits[0])
    asked = demand(limit(measure, amount, **fields), tokens=(300, 500))
    hold, other = [await admission.admit(TENANT, Femto(1), asked) for _ in range(2)]
    await admission.prefilled(hold, 200)
    (key,) = await keys(valkey)
    life_ms = await valkey.call("PTTL", key)
    await admission.release(
        hold, BalanceVersion(TENANT, RICH, 2), Spent(Femto(1), hold.admitted_at, 300, 200, 40)
    )
    assert 0 < await valkey.call("PTTL", key) <= life_ms
    window_us = DAY_US if measure == "tokens_per_day" else MINUTE_US
    drained = amount * ((other.admitted_at - hold.admitted_at) // timedelta(microseconds=1))
    level, _ = await bucket(valkey, key, window_us)
    assert level == (kept + asked.cost(asked.limits[0])) * window_us - drained


async def test_a_void_takes_nothing_from_what_others_took(admission: Admission, valkey: Valkey) -> None:
    asked = demand(limit("output_tokens_per_minute", 10**6), tokens=(300, 500))
    hold, other = [await admission.admit(TENANT, Femto(1), asked) for _ in range(2)]
    await admission.void(hold)
    drained = 10**6 * ((other.admitted_at - hold.admitted_at) // timedelta(microseconds=1))
    (key,) = await keys(valkey)
    assert (await bucket(valkey, key))[0] == 500 * MINUTE_US - drained


async def test_a_bucket_lives_until_it_is_empty(admission: Admission, valkey: Valkey) -> None:
    await admission.admit(TENANT, Femto(1), demand(limit("input_tokens_per_minute", 100), tokens=(50, 1)))
    (key,) = await keys(valkey)
    assert 29_000 < await valkey.call("PTTL", key) <= 31_000


async def test_a_void_gives_all_tokens_back_and_no_request(admission: Admission) -> None:
    limits = [limit(m, 10) for m in ("input_tokens_per_minute", "output_tokens_per_minute")]
    requests = limit("requests_per_minute", 2)
    for _ in range(2):
        await admission.void(
            await admission.admit(TENANT, Femto(1), demand(requests, *limits, tokens=(10, 10)))
        )
    with pytest.raises(LimitReached) as refused:
        await admission.admit(TENANT, Femto(1), demand(requests, *limits, tokens=(10, 10)))
    assert refused.value.limit == requests


async def test_what_time_has_given_back_is_not_given_back_again(admission: Admission, valkey: Valkey) -> None:
    """A bucket that has been empty since a request was admitted holds what others took."""
    per_minute = limit("output_tokens_per_minute", 100)
    old = await admission.admit(TENANT, Femto(1), demand(per_minute, tokens=(1, 100)))
    (key,) = await keys(valkey)
    await valkey.call("DEL", key)  # as it goes when it is empty
    await admission.admit(TENANT, Femto(1), demand(per_minute, tokens=(1, 100)))
    await admission.void(old)
    assert await tried(admission, demand(per_minute, tokens=(1, 5))) is None


async def test_limits_count_their_model_user_and_owner_alone(admission: Admission) -> None:
    of_model = limit("requests_per_minute", 1, model=MODEL)
    of_user = limit("requests_per_minute", 1, per_user=True)
    of_key = limit("requests_per_minute", 1, owner_id="key_b")
    assert await tried(admission, demand(of_model))
    assert await tried(admission, demand(of_model)) is None
    assert await tried(admission, demand(of_model, model="other"))
    assert await tried(admission, demand(of_user, user="ann"))
    assert await tried(admission, demand(of_user, user="ann")) is None
    assert await tried(admission, demand(of_user, user="bob"))
    assert await tried(admission, demand(of_user))
    assert await tried(admission, demand(of_user)) is None  # who leaves the id out shares it
    assert await tried(admission, demand(of_key))


async def test_state_of_users_is_hashed_and_every_key_of_limits_goes_by_itself(
    admission: Admission, valkey: Valkey
) -> None:
    measures = ("requests_per_minute", "input_tokens_per_minute", "tokens_per_day", "concurrent")
    limits = [limit(measure, 1000, per_user=True) for measure in measures]
    hold = await admission.admit(
        TENANT, Femto(1), demand(*limits, tokens=(10, 10), user="canary@example.org")
    )
    found = await keys(valkey)
    assert len(found) == 4
    assert not [key for key in found if "canary" in key]
    lives_ms = [await valkey.call("PTTL", key) for key in found]
    assert all(0 < life_ms <= DAY_US / 1000 for life_ms in lives_ms), lives_ms
    await admission.void(hold)
    assert -1 not in await asyncio.gather(*(valkey.call("PTTL", key) for key in await keys(valkey)))


async def test_all_keys_of_an_admission_are_in_one_slot_of_a_cluster(
    admission: Admission, valkey: Valkey
) -> None:
    await admission.admit(TENANT, Femto(1), demand(limit("requests_per_minute", 5), limit("concurrent", 5)))
    assert {key for key in await valkey.call("KEYS", "*") if "{" + TENANT + "}" not in key} == {"kv:held"}


async def test_a_refusal_names_its_limit_and_the_headers_are_its_own(admission: Admission) -> None:
    minute, day = limit("input_tokens_per_minute", 50), limit("output_tokens_per_minute", 30, per_user=True)
    requests = limit("requests_per_minute", 9, model=MODEL)
    hold = await admission.admit(TENANT, Femto(1), demand(minute, day, requests, tokens=(10, 25)))
    assert hold.quota.requests == Left(9, 8, hold.quota.requests.reset_ms)
    assert hold.quota.tokens == Left(30, 5, 50_000)
    with pytest.raises(LimitReached) as refused:
        await admission.admit(TENANT, Femto(1), demand(minute, day, requests, tokens=(45, 1)))
    assert refused.value.limit == minute
    assert refused.value.quota.tokens.limit == 50
    assert refused.value.quota.requests.remaining == 8
    assert str(refused.value) == f"input_tokens_per_minute of the key {KEY}: limit 50, requested 45"


async def test_a_lowered_limit_counts_a_fuller_bucket_as_full(admission: Admission) -> None:
    assert await tried(admission, demand(limit("input_tokens_per_minute", 1000), tokens=(900, 1)))
    with pytest.raises(LimitReached) as refused:
        await admission.admit(TENANT, Femto(1), demand(limit("input_tokens_per_minute", 10), tokens=(10, 1)))
    assert refused.value.retry_after_s == 60


async def test_tokens_of_the_day_are_asked_for_before_anything_is_taken(
    admission: Admission, valkey: Valkey
) -> None:
    asked = demand(limit("tokens_per_day", 1000), limit("requests_per_minute", 1), tokens=(100, 100))
    with pytest.raises(ProjectionMissing) as missing:
        await admission.admit(TENANT, Femto(1), asked)
    (day,) = missing.value.days
    assert (missing.value.balance, missing.value.budgets) == (False, ())
    await admission.project_day(TENANT, day, 700)
    await admission.project_day(TENANT, day, 0)  # what is known is not overwritten
    hold = await admission.admit(TENANT, Femto(1), asked)
    with pytest.raises(LimitReached):
        await admission.admit(TENANT, Femto(1), asked)
    assert await valkey.call("PTTL", f"kv:{{{TENANT}}}:{day.name}") > DAY_US / 1000 - 60_000
    await admission.release(
        hold, BalanceVersion(TENANT, RICH, 2), Spent(Femto(1), hold.admitted_at, 100, 50, 50)
    )
    assert await tried(admission, demand(limit("tokens_per_day", 1000), tokens=(100, 49)))
    assert await tried(admission, demand(limit("tokens_per_day", 1000), tokens=(1, 2))) is None


async def test_a_release_after_a_wipe_has_the_day_read_again(admission: Admission, valkey: Valkey) -> None:
    asked = demand(limit("tokens_per_day", 1000), tokens=(100, 100))
    (day,) = asked.limits
    await admission.project_day(TENANT, day, 0)
    hold = await admission.admit(TENANT, Femto(1), asked)
    await valkey.call("FLUSHALL")
    await rich(admission)
    await admission.project_day(TENANT, day, 0)
    await admission.release(
        hold, BalanceVersion(TENANT, RICH, 2), Spent(Femto(1), hold.admitted_at, 100, 0, 100)
    )
    with pytest.raises(ProjectionMissing):
        await admission.admit(TENANT, Femto(1), asked)


@pytest.mark.parametrize(
    ("ms", "written"),
    [
        (0, "0ms"),
        (999, "999ms"),
        (1000, "1s"),
        (8640, "8.64s"),
        (360_000, "6m0s"),
        (86_340_250, "23h59m0.25s"),
    ],
)
def test_durations_are_written_as_openai_does(ms: int, written: str) -> None:
    assert duration(ms) == written


@given(amount=st.integers(1, AMOUNT_MAX), data=st.data())
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_bucket_drains_exactly_in_doubles(valkey_url: str, amount: int, data: st.DataObject) -> None:
    window = data.draw(st.sampled_from((MINUTE_US, DAY_US)))
    elapsed = data.draw(st.integers(0, window - 1))
    script = Script(PRELUDE + "local w, r = drained(ARGV[1], ARGV[2], ARGV[3]) return {digits(w), digits(r)}")

    async def ask() -> list[str]:
        valkey = Valkey.connect(valkey_url)
        told: list[str] = await valkey.run(script, (), (amount, elapsed, window))
        await valkey.close()
        return told

    whole, rest = asyncio.run(ask())
    assert (int(whole), int(rest)) == divmod(amount * elapsed, window)


@given(data=st.data())
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_bucket_is_what_its_level_at_an_instant_makes_it(valkey_url: str, data: st.DataObject) -> None:
    """Lowered limits and clocks set back included."""
    amount, held = data.draw(st.integers(1, 10**6)), data.draw(st.integers(0, 10**6))
    rest, now = data.draw(st.integers(0, MINUTE_US - 1)), data.draw(st.integers(0, 3 * MINUTE_US))
    at, since = MINUTE_US, MINUTE_US // 2
    script = Script(
        PRELUDE
        + "local text = struct.pack(BUCKET, ARGV[1], ARGV[2], ARGV[3], ARGV[4])"
        + " local w, r, at, since = bucket_at(text, tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]))"
        + " return {digits(w), digits(r), digits(at), digits(since)}"
    )

    async def ask() -> list[int]:
        valkey = Valkey.connect(valkey_url)
        told = await valkey.run(script, (), (held, rest, at, since, amount, MINUTE_US, now))
        await valkey.close()
        return [int(word) for word in told]

    level = min(held * MINUTE_US + rest, amount * MINUTE_US) - amount * max(0, now - at)
    expected = [*divmod(level, MINUTE_US), max(at, now), since] if level > 0 else [0, 0, now, now]
    if level <= 0 and now <= at:  # empty as it was stored
        expected = [0, 0, at, since]
    assert asyncio.run(ask()) == expected


class Model:
    """A bucket in exact integers; every admission it is shown must fit, at its own instant."""

    def __init__(self, amount: int, window_us: int) -> None:
        self.amount, self.window_us = amount, window_us
        self.level, self.at_us = 0, 0

    def take(self, cost: int, at_us: int) -> None:
        self.level = max(0, self.level - self.amount * (at_us - self.at_us)) + cost * self.window_us
        self.at_us = at_us
        assert self.level <= self.amount * self.window_us


async def test_a_thousand_random_concurrent_admissions_never_pass_a_limit_at_any_instant(
    valkey_url: str,
) -> None:
    """BerriAI/litellm#18730, from four replicas, with limits at every level, and slots that come back."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    chosen = random.Random(seed)  # noqa: S311  reproducible, no secret
    replicas = [Valkey.connect(valkey_url) for _ in range(4)]
    admissions = [Admission(valkey) for valkey in replicas]
    await rich(admissions[0])
    limits = [
        limit("requests_per_minute", 500, level="tenant", owner_id=TENANT),
        limit("input_tokens_per_minute", 120_000, level="project", owner_id="prj_a"),
        limit("output_tokens_per_minute", 90_000, per_user=True),
        limit("input_tokens_per_minute", 70_000, model=MODEL),
    ]
    slots = limit("concurrent", 40)
    admitted: list[tuple[Hold, Demand, str]] = []
    running = peak = 0

    async def request() -> None:
        nonlocal running, peak
        await asyncio.sleep(chosen.random() / 2)
        user, model = chosen.choice("ab"), chosen.choice((MODEL, "other"))
        asked = demand(
            *limits, slots, tokens=(chosen.randint(1, 999), chosen.randint(1, 999)), user=user, model=model
        )
        admission = chosen.choice(admissions)
        hold = await tried(admission, asked)
        if hold is None:
            return
        running += 1
        peak = max(peak, running)
        admitted.append((hold, asked, user))
        await asyncio.sleep(chosen.random() / 50)
        running -= 1
        balance = BalanceVersion(TENANT, RICH, 1)
        assert await admission.release(hold, balance, Spent(Femto(0), hold.admitted_at, *asked_tokens(asked)))

    await asyncio.gather(*(request() for _ in range(1000)))
    assert 40 <= len(admitted) < 1000
    assert 1 < peak <= 40
    buckets: dict[str, Model] = {}
    for hold, asked, _ in sorted(admitted, key=lambda each: each[0].admitted_at):
        at_us = int(hold.admitted_at.timestamp()) * 10**6 + hold.admitted_at.microsecond
        for one in asked.limits[:-1]:
            buckets.setdefault(one.name, Model(one.amount, MINUTE_US)).take(asked.cost(one), at_us)
    for name, model_of in buckets.items():
        level, at_us = await bucket(replicas[0], f"kv:{{{TENANT}}}:{name}")
        assert (level, at_us) == (model_of.level, model_of.at_us)
    assert (await admissions[0].held(TENANT)).holds == {}
    for valkey in replicas:
        await valkey.close()


def asked_tokens(asked: Demand) -> tuple[int, int, int]:
    """All that was reserved was used: nothing is given back."""
    return asked.input_tokens, 0, asked.output_tokens


@given(uses=st.lists(st.tuples(st.integers(1, 120), st.integers(0, 120)), min_size=1, max_size=20))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_net_of_refunds_no_interval_passes_burst_and_rate(
    valkey_url: str, uses: list[tuple[int, int]]
) -> None:
    """Requests one after another, each of which gives back what it did not use before the next comes."""

    async def run() -> None:
        valkey = Valkey.connect(valkey_url)
        await valkey.call("FLUSHALL")
        admission, per_minute = await rich(Admission(valkey)), limit("output_tokens_per_minute", 100)
        net: list[tuple[datetime, int]] = []
        for reserved, used in uses:
            hold = await tried(admission, demand(per_minute, tokens=(1, reserved)))
            if hold:
                kept = min(used, reserved)
                spent = Spent(Femto(0), hold.admitted_at, 1, 0, kept)
                await admission.release(hold, BalanceVersion(TENANT, RICH, 1), spent)
                net.append((hold.admitted_at, kept))
        for first in range(len(net)):
            for last in range(first, len(net)):
                us = (net[last][0] - net[first][0]) // timedelta(microseconds=1)
                assert sum(kept for _, kept in net[first : last + 1]) * MINUTE_US <= 100 * (MINUTE_US + us)
        await valkey.close()

    asyncio.run(run())
