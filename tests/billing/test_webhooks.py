"""Endpoints of tenants, and notices on their way there: signed, at least once, each attempt on record."""

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from billing.audit.service import Audit
from billing.db.access import OWNER, SETTLER
from billing.db.pages import Page
from billing.errors import NoticeMissing, TenancyInvalid, TenantMissing, WebhookMissing
from billing.interval import Interval
from billing.notify import schedule
from billing.notify.delivery import ERROR_CHARACTERS_MAX, LEASE, Deliveries, Reply
from billing.notify.endpoint import ENDPOINTS_MAX, Delivery
from billing.notify.kind import Kind
from billing.notify.notice import Notice
from billing.notify.service import emit
from billing.notify.webhooks import Webhooks
from gateway.vault import Vault
from tests.billing.conftest import NOON

URL = "https://example.com/hook"
TAKEN = Reply(204, "", timedelta(milliseconds=7))
BROKEN = Reply(500, "oh\x00 no\n", timedelta(milliseconds=3))
SILENT = Reply(None, "no whole answer in time", timedelta(seconds=15))


@dataclass
class Receiver:
    """A sender whose endpoints answer as they are told: the next reply, the last one for ever."""

    replies: list[Reply] = field(default_factory=lambda: [TAKEN])
    got: list[tuple[str, bytes, Mapping[str, str]]] = field(default_factory=list)
    hold: asyncio.Event | None = None

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        self.got.append((url, body, headers))
        if self.hold is not None:
            await self.hold.wait()
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


@dataclass
class Post:
    """A tenant's webhooks, and a clock that says when the job runs."""

    house: Any
    webhooks: Webhooks
    deliveries: Deliveries
    receiver: Receiver
    at: datetime = NOON

    async def add(self, kinds: Sequence[Kind] | None = None, url: str = URL) -> tuple[str, str]:
        wanted = None if kinds is None else frozenset(kinds)
        made = await self.webhooks.add(self.house.tenant_id, url, wanted, NOON, actor="key_boss")
        return made.endpoint.id, made.secret

    async def tell(self, kind: Kind = "balance.low", at: datetime = NOON) -> str:
        async with self.house.database.transaction(SETTLER) as connection:
            made = await emit(connection, Notice(self.house.tenant_id, kind, at, {"balance": "0.5"}))
        assert made
        return made

    async def run(self, after: timedelta = timedelta(0)) -> int:
        self.at += after
        return await self.deliveries.deliver_due()

    async def shown(self, endpoint_id: str) -> list[Delivery]:
        return await self.webhooks.deliveries(endpoint_id)

    async def endpoint(self, endpoint_id: str) -> Any:
        return await self.webhooks.endpoint(endpoint_id)


@pytest.fixture
async def post(house: Any) -> Post:
    """The job sees all tenants of the module's database: what is left of others is settled first."""
    async with house.database.transaction(OWNER) as connection:
        await connection.execute(text("UPDATE webhook_delivery SET state = 'given_up'"))
    vault, receiver = Vault(b"deployment", "secrets of webhooks"), Receiver()
    webhooks = Webhooks(house.database, vault, lambda url: "it is ugly" if "ugly" in url else None)
    made = Post(house, webhooks, None, receiver)  # type: ignore[arg-type]  # it needs the clock
    made.deliveries = Deliveries(house.database, vault, receiver, lambda: made.at)
    return made


async def test_what_is_delivered_verifies_by_the_public_library(post: Post) -> None:
    _, secret = await post.add()
    notice_id = await post.tell()
    post.at = datetime.now(UTC)  # the library refuses old timestamps
    assert await post.run() == 1
    ((url, body, headers),) = post.receiver.got
    assert url == URL
    assert headers["webhook-id"] == notice_id
    assert Webhook(secret).verify(body, dict(headers))["data"] == {"balance": "0.5"}
    for flipped in (body.replace(b"0.5", b"5.0"), body + b" "):
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(flipped, dict(headers))
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(body, {**headers, "webhook-id": "ntc_other"})
    assert await post.run(LEASE) == 0


async def test_a_rotated_secret_signs_beside_the_old_one_for_the_grace(post: Post) -> None:
    endpoint_id, old = await post.add()
    now = datetime.now(UTC)
    issued = await post.webhooks.rotate(endpoint_id, timedelta(hours=1), now, actor="key_boss")
    verified = []
    for post.at in (now, now + timedelta(hours=1)):
        await post.tell(at=post.at)
        await post.run()
        _, body, headers = post.receiver.got.pop()
        for secret in (old, issued.secret):
            library = Webhook(secret)
            mine = library.sign(headers["webhook-id"], post.at, body.decode())
            verified.append(mine in headers["webhook-signature"].split(" "))
    assert verified == [True, True, False, True]


async def test_a_secret_is_in_the_database_sealed_and_in_no_log(post: Post) -> None:
    endpoint_id, secret = await post.add(url=f"{URL}/token?key=canary")
    await post.webhooks.rotate(endpoint_id, timedelta(0), NOON, actor="key_boss")
    async with post.house.database.transaction(OWNER) as connection:
        sealed = (await connection.execute(text("SELECT sealed FROM webhook_secret"))).scalars().all()
        log = await connection.execute(text("SELECT row_to_json(audit_event)::text FROM audit_event"))
        written = "".join(log.scalars())
    assert secret.removeprefix("whsec_") not in "".join(sealed)
    assert "webhook.rotate" in written
    assert "canary" not in written
    assert secret.removeprefix("whsec_") not in written
    assert "https://example.com" in written


async def test_an_unreadable_secret_is_an_attempt_in_vain_that_says_so(post: Post) -> None:
    endpoint_id, _ = await post.add()
    await post.tell()
    other = Deliveries(post.house.database, Vault(b"another"), post.receiver, lambda: NOON)
    assert await other.deliver_due() == 1
    assert post.receiver.got == []
    ((attempt,),) = [each.attempts for each in await post.shown(endpoint_id)]
    assert "rotate it" in (attempt.error or "")


async def test_what_is_not_taken_is_tried_ten_times_in_three_days_under_one_id(post: Post) -> None:
    endpoint_id, _ = await post.add()
    post.receiver.replies = [BROKEN]
    notice_id = await post.tell()
    tried = []
    while (await post.shown(endpoint_id))[0].state == "pending":
        (delivery,) = await post.shown(endpoint_id)
        post.at = max(post.at, delivery.due_at)
        tried.append(post.at - NOON)
        assert await post.run() == 1
    assert len(tried) == 10
    assert timedelta(days=3) < tried[-1] < timedelta(days=3, hours=12)
    pauses = [later - sooner for sooner, later in itertools.pairwise(tried)]
    assert all(a <= b <= a * 11 // 10 for a, b in zip(schedule.PAUSES, pauses, strict=True))
    (delivery,) = await post.shown(endpoint_id)
    assert (delivery.state, delivery.notice_id) == ("given_up", notice_id)
    assert [attempt.number for attempt in delivery.attempts] == list(range(1, 11))
    assert {(attempt.status, attempt.error) for attempt in delivery.attempts} == {
        (500, "answered 500: oh  no")
    }
    assert {headers["webhook-id"] for _, _, headers in post.receiver.got} == {notice_id}
    assert len({body for _, body, _ in post.receiver.got}) == 1
    assert await post.run(timedelta(days=9)) == 0


async def test_an_attempt_without_an_answer_is_recorded_with_its_duration(post: Post) -> None:
    endpoint_id, _ = await post.add()
    post.receiver.replies = [SILENT, TAKEN]
    await post.tell()
    await post.run()
    await post.run(timedelta(seconds=6))
    (delivery,) = await post.shown(endpoint_id)
    first, second = delivery.attempts
    assert (first.status, first.duration_ms, first.error) == (None, 15_000, "no whole answer in time")
    assert (second.status, second.duration_ms, second.error) == (204, 7, None)
    assert delivery.state == "delivered"
    assert (await post.endpoint(endpoint_id)).failing_since is None


def test_what_is_recorded_of_a_fault_is_bounded() -> None:
    assert len(replace(BROKEN, said="x" * 10_000).error or "") == ERROR_CHARACTERS_MAX
    assert replace(BROKEN, said="").error == "answered 500"
    assert replace(BROKEN, status=302, said="").error == "answered 302"


async def test_gone_disables_at_once_with_an_entry_and_gives_up_the_rest(post: Post) -> None:
    endpoint_id, _ = await post.add()
    post.receiver.replies = [Reply(410, "", timedelta(0))]
    for _ in range(6):
        await post.tell()
    assert await post.run() == 4  # at once; the rest has no endpoint any more
    endpoint = await post.endpoint(endpoint_id)
    assert (endpoint.enabled, endpoint.disabled_for) == (False, "it answered 410 Gone")
    assert {each.state for each in await post.shown(endpoint_id)} == {"given_up"}
    assert await post.run(timedelta(days=1)) == 0
    deed = (await Audit(post.house.database).events(post.house.tenant_id))[-1].deed
    assert (deed.actor, deed.action, deed.object) == ("system", "webhook.disable", endpoint_id)
    assert await Audit(post.house.database).verify(post.house.tenant_id) == []


async def test_an_endpoint_that_fails_for_long_is_disabled_and_one_success_forgives_all(post: Post) -> None:
    endpoint_id, _ = await post.add()
    for post.receiver.replies in ([BROKEN], [TAKEN], [BROKEN]):
        await post.tell(at=post.at)
        await post.run()
        post.at += timedelta(days=4)
    assert (await post.endpoint(endpoint_id)).enabled
    await post.run(timedelta(days=1))
    endpoint = await post.endpoint(endpoint_id)
    assert not endpoint.enabled
    assert endpoint.disabled_for == "it has taken nothing since 2026-11-10T12:00:00Z"
    enabled = await post.webhooks.change(endpoint_id, {"enabled": True}, NOON, actor="key_boss")
    assert (enabled.enabled, enabled.disabled_for, enabled.failing_since) == (True, None, None)


async def test_a_run_that_dies_leaves_a_lease_and_the_next_sends_again(post: Post) -> None:
    endpoint_id, _ = await post.add()
    notice_id = await post.tell()
    post.receiver.hold = asyncio.Event()
    dying = asyncio.create_task(post.run())
    while not post.receiver.got:
        await asyncio.sleep(0)
    assert await post.run() == 0  # leased
    dying.cancel()
    await asyncio.gather(dying, return_exceptions=True)
    post.receiver.hold = None
    assert await post.run(LEASE) == 1
    assert [headers["webhook-id"] for _, _, headers in post.receiver.got] == [notice_id, notice_id]
    assert [each.state for each in await post.shown(endpoint_id)] == ["delivered"]


async def test_two_jobs_at_once_send_each_notice_once(post: Post) -> None:
    await post.add()
    told = {await post.tell() for _ in range(20)}
    await asyncio.gather(post.run(), post.run(), post.run())
    sent = [headers["webhook-id"] for _, _, headers in post.receiver.got]
    assert sorted(sent) == sorted(told)


async def test_a_slow_endpoint_leaves_places_for_others(post: Post) -> None:
    await post.add(url=f"{URL}/slow")
    for _ in range(40):
        await post.tell()
    await post.add(url=f"{URL}/other")
    await post.tell(at=NOON + timedelta(seconds=1))
    post.at = NOON + timedelta(seconds=1)
    post.receiver.hold = asyncio.Event()
    running = asyncio.create_task(post.run())
    while len(post.receiver.got) < 5:
        await asyncio.sleep(0)
    assert f"{URL}/other" in {url for url, _, _ in post.receiver.got}
    post.receiver.hold.set()
    await running


async def test_replay_delivers_once_more_under_the_old_id(post: Post) -> None:
    endpoint_id, _ = await post.add(["balance.low"])
    hour = timedelta(hours=1)
    early, late = await post.tell(), await post.tell(at=NOON + hour)
    unwanted = await post.tell("key.expiring")
    await post.run(hour)
    interval = Interval(NOON, NOON + hour)
    assert await post.webhooks.replay(endpoint_id, interval, post.at) == 1
    assert await post.webhooks.replay(endpoint_id, late, post.at) == 1
    assert await post.webhooks.replay(endpoint_id, unwanted, post.at) == 1  # by its name, wanted or not
    post.receiver.got.clear()
    assert await post.run() == 3
    sent = [headers["webhook-id"] for _, _, headers in post.receiver.got]
    assert sorted(sent) == sorted([early, late, unwanted])
    tried = {each.notice_id: len(each.attempts) for each in await post.shown(endpoint_id)}
    assert tried == {early: 2, late: 2, unwanted: 1}
    with pytest.raises(NoticeMissing):
        await post.webhooks.replay(endpoint_id, "ntc_none", post.at)


async def test_replay_does_not_wait_for_the_next_attempt_and_begins_anew(post: Post) -> None:
    endpoint_id, _ = await post.add()
    post.receiver.replies = [BROKEN]
    notice_id = await post.tell()
    for pause in (0, 6, 400):
        await post.run(timedelta(seconds=pause))
    assert await post.run(timedelta(minutes=1)) == 0  # the next one is half an hour away
    await post.webhooks.replay(endpoint_id, notice_id, post.at)
    assert await post.run() == 1
    (delivery,) = await post.shown(endpoint_id)
    assert delivery.due_at - post.at < timedelta(seconds=6)


async def test_a_new_endpoint_can_be_told_what_was_before_it(post: Post) -> None:
    await post.tell()
    endpoint_id, _ = await post.add()
    assert await post.run() == 0
    assert await post.webhooks.replay(endpoint_id, Interval(NOON, NOON + timedelta(days=1)), post.at) == 1
    assert await post.run() == 1


async def test_a_test_goes_to_its_endpoint_alone(post: Post) -> None:
    endpoint_id, _ = await post.add(["key.expiring"])
    await post.add(url=f"{URL}/other")
    notice_id = await post.webhooks.test(endpoint_id, NOON)
    await post.run()
    assert [(url, headers["webhook-id"]) for url, _, headers in post.receiver.got] == [(URL, notice_id)]
    await post.webhooks.change(endpoint_id, {"enabled": False}, NOON, actor="key_boss")
    with pytest.raises(TenancyInvalid, match="enable it first"):
        await post.webhooks.test(endpoint_id, NOON)
    with pytest.raises(TenancyInvalid, match="enable it first"):
        await post.webhooks.replay(endpoint_id, notice_id, NOON)


async def test_a_removed_endpoint_gets_nothing_even_of_what_was_on_its_way(post: Post) -> None:
    endpoint_id, _ = await post.add()
    await post.tell()
    post.receiver.hold = asyncio.Event()
    running = asyncio.create_task(post.run())
    while not post.receiver.got:
        await asyncio.sleep(0)
    await post.webhooks.remove(endpoint_id, NOON, actor="key_boss")
    post.receiver.hold.set()
    await running
    with pytest.raises(WebhookMissing):
        await post.shown(endpoint_id)
    assert await post.run(LEASE) == 0
    async with post.house.database.transaction(OWNER) as connection:
        left = await connection.execute(
            text("SELECT count(*) FROM webhook_secret WHERE endpoint_id = :id"), {"id": endpoint_id}
        )
        assert left.scalar_one() == 0


async def test_another_tenants_endpoint_is_not_there(post: Post) -> None:
    endpoint_id, _ = await post.add()
    other = (await post.house.other_tenant()).tenant_id
    w, by = post.webhooks, {"actor": "key_x", "tenant_id": other}
    assert await w.endpoints(other) == []
    for refused in (
        w.endpoint(endpoint_id, other),
        w.change(endpoint_id, {"enabled": False}, NOON, **by),
        w.rotate(endpoint_id, timedelta(0), NOON, **by),
        w.remove(endpoint_id, NOON, **by),
        w.test(endpoint_id, NOON, tenant_id=other),
        w.replay(endpoint_id, Interval(NOON, NOON), NOON, tenant_id=other),
        w.deliveries(endpoint_id, tenant_id=other),
    ):
        with pytest.raises(WebhookMissing):
            await refused


async def test_another_tenants_notice_is_not_replayed(post: Post) -> None:
    endpoint_id, _ = await post.add()
    other = replace(post, house=await post.house.other_tenant())
    with pytest.raises(NoticeMissing):
        await post.webhooks.replay(endpoint_id, await other.tell(), NOON)


async def test_what_means_nothing_is_refused(post: Post) -> None:
    tenant_id, by = post.house.tenant_id, {"actor": "key_boss"}
    with pytest.raises(TenancyInvalid, match="ugly"):
        await post.webhooks.add(tenant_id, "https://ugly", None, NOON, **by)
    with pytest.raises(TenancyInvalid, match="kinds"):
        await post.webhooks.add(tenant_id, URL, frozenset(), NOON, **by)
    with pytest.raises(TenantMissing):
        await post.webhooks.add("ten_nobody", URL, None, NOON, **by)
    endpoint_id, _ = await post.add()
    with pytest.raises(TenancyInvalid, match="ugly"):
        await post.webhooks.change(endpoint_id, {"url": "https://ugly"}, NOON, **by)
    for grace in (timedelta(seconds=-1), timedelta(days=366)):
        with pytest.raises(TenancyInvalid, match="grace"):
            await post.webhooks.rotate(endpoint_id, grace, NOON, **by)
    for _ in range(ENDPOINTS_MAX - 1):
        await post.add()
    with pytest.raises(TenancyInvalid, match="no more"):
        await post.add()


async def test_deliveries_come_in_pages_newest_first(post: Post) -> None:
    endpoint_id, _ = await post.add()
    told = sorted([await post.tell() for _ in range(5)], reverse=True)
    page = await post.webhooks.deliveries(endpoint_id, Page(None, 2))
    more = await post.webhooks.deliveries(endpoint_id, Page(page[-1].notice_id, 9))
    assert [each.notice_id for each in (*page, *more)] == told


def test_pauses_grow_to_a_day_and_then_end() -> None:
    assert schedule.next_attempt(1, NOON, 0) == NOON + timedelta(seconds=5)
    assert schedule.next_attempt(9, NOON, 100) == NOON + timedelta(hours=26, minutes=24)
    assert schedule.next_attempt(10, NOON, 0) is None
