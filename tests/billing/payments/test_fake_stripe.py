"""The imitation keeps the promises of Stripe's that our code leans on, seen through Stripe's own SDK."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import stripe

from tests.billing.conftest import NOON
from tests.billing.payments.fake_stripe import SECRET_KEY, WEBHOOK_SECRET, FakeStripe


@pytest.fixture
async def fake() -> AsyncIterator[FakeStripe]:
    fake = FakeStripe(NOON)
    async with fake.wire.served():
        yield fake


@pytest.fixture
async def client(fake: FakeStripe) -> AsyncIterator[stripe.StripeClient]:
    http = stripe.AIOHTTPClient(timeout=5)
    yield stripe.StripeClient(
        SECRET_KEY, base_addresses={"api": fake.wire.url}, http_client=http, max_network_retries=0
    )
    await http.close_async()


def payment(fake: FakeStripe, comes_to: str = "succeeds", **more: Any) -> dict[str, Any]:
    customer_id = fake.make_customer()["id"]
    method = fake.give_card(customer_id, comes_to)
    said = {"amount": 700, "currency": "usd", "customer": customer_id, "payment_method": method}
    return {**said, "confirm": True, **more}


async def test_a_key_with_the_same_body_gets_the_same_answer_and_with_another_a_refusal(
    fake: FakeStripe, client: stripe.StripeClient
) -> None:
    said, once = payment(fake), {"idempotency_key": "k"}
    first, second = [await client.v1.payment_intents.create_async(said, once) for _ in range(2)]  # type: ignore[arg-type]  # literals
    assert (first.id, first.status, first.amount_received) == (second.id, "succeeded", 700)
    with pytest.raises(stripe.IdempotencyError):
        await client.v1.payment_intents.create_async({**said, "amount": 701}, once)  # type: ignore[arg-type]  # likewise


async def test_a_decline_and_a_failure_are_said_again_to_the_same_key(
    fake: FakeStripe, client: stripe.StripeClient
) -> None:
    said = payment(fake, "insufficient_funds")
    for _ in range(2):
        with pytest.raises(stripe.CardError) as declined:
            await client.v1.payment_intents.create_async(said, {"idempotency_key": "k"})  # type: ignore[arg-type]  # likewise
        assert declined.value.error is not None
        assert declined.value.error.decline_code == "insufficient_funds"
    assert len(fake.of("payment_intent")) == 1
    fake.wire.faults[3] = "500_after"
    said = payment(fake)
    for _ in range(2):
        with pytest.raises(stripe.APIError):
            await client.v1.payment_intents.create_async(said, {"idempotency_key": "f"})  # type: ignore[arg-type]  # likewise
    assert len(fake.of("payment_intent")) == 2


@pytest.mark.parametrize("version", [1, 2])
async def test_a_meter_takes_each_identifier_once_and_nothing_old(
    fake: FakeStripe, client: stripe.StripeClient, version: int
) -> None:
    async def send(at: Any, identifier: str = "i") -> Any:
        payload = {"stripe_customer_id": "cus_1", "value": "7"}
        said: Any = {"event_name": "tokens", "payload": payload, "identifier": identifier}
        if version == 1:
            said["timestamp"] = int(at.timestamp())
            return await client.v1.billing.meter_events.create_async(said)
        said["timestamp"] = at.isoformat()
        return await client.v2.billing.meter_events.create_async(said)

    assert (await send(NOON)).identifier == "i"
    with pytest.raises(stripe.InvalidRequestError, match="already exists"):
        await send(NOON)
    for odd in (NOON - timedelta(days=36), NOON + timedelta(minutes=6)):
        with pytest.raises(stripe.InvalidRequestError, match="35"):
            await send(odd, "other")


async def test_lists_come_in_pages_newest_first(fake: FakeStripe, client: stripe.StripeClient) -> None:
    said = payment(fake)
    made = [fake.make_payment(**{**said, "confirm": "true"})["id"] for _ in range(5)]
    fake.page_max = 2
    listed = await client.v1.payment_intents.list_async({"customer": str(said["customer"])})
    assert [one.id async for one in listed.auto_paging_iter()] == made[::-1]


async def test_events_are_signed_as_the_sdk_checks_them(
    fake: FakeStripe, client: stripe.StripeClient
) -> None:
    fake.make_payment(**{**payment(fake), "confirm": "true"})
    body, header = fake.signed(fake.events[-1])
    event = client.construct_event(body, header, WEBHOOK_SECRET, tolerance=10**9)
    assert event.type == "payment_intent.succeeded"
    with pytest.raises(stripe.SignatureVerificationError):
        client.construct_event(body + b" ", header, WEBHOOK_SECRET)
