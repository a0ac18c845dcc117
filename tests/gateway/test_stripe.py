"""Stripe's webhooks at the edge: the signature lets them in, and what they credit can be spent at once."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from io import BytesIO
from typing import Any

import pytest

from billing.money import Femto
from billing.payments.inbox import Inbox
from billing.payments.service import Payments
from gateway.admission.admit import Admission
from gateway.valkey import Valkey
from tests.billing.payments.fake_stripe import WEBHOOK_SECRET, FakeStripe
from tests.gateway.conftest import CREDIT, EPOCH, House, furnish, served

PATH = "/webhooks/stripe"


@pytest.fixture
async def open_house(database_url: str, valkey_url: str) -> AsyncIterator[House]:
    house = await furnish(database_url, valkey_url)
    house.parts = replace(house.parts, inbox=Inbox(house.parts.database, WEBHOOK_SECRET))
    async with served(house) as house:
        yield house


@pytest.fixture
async def paid(open_house: House) -> FakeStripe:
    """A payment of 3 at Stripe, made now."""
    fake = FakeStripe(await open_house.desk.organization.clock.now())
    customer_id = fake.make_customer()["id"]
    await Payments(open_house.parts.database).link(open_house.tenant_id, customer_id, EPOCH, actor="test")
    said = {"customer": customer_id, "amount": 300, "currency": "usd", "confirm": "true"}
    fake.make_payment(
        **said, payment_method=fake.give_card(customer_id), metadata={"kvitto_purpose": "top_up"}
    )
    return fake


async def post(house: House, body: bytes | BytesIO, header: str | None) -> tuple[int, Any]:
    headers = {} if header is None else {"stripe-signature": header}
    async with house.session.post(house.url + PATH, data=body, headers=headers) as answer:
        return answer.status, json.loads(await answer.read())


async def test_a_payment_can_be_spent_as_soon_as_it_is_told_of(open_house: House, paid: FakeStripe) -> None:
    body, header = paid.signed(paid.events[-1])
    assert await post(open_house, body, header) == (200, {"received": paid.events[-1]["id"], "new": True})
    await open_house.admission.admit(open_house.tenant_id, Femto(CREDIT + 3 * 10**15))
    assert await post(open_house, body, header) == (200, {"received": paid.events[-1]["id"], "new": False})
    assert await open_house.balance() == CREDIT + 3 * 10**15


async def test_what_is_not_signed_is_400_and_changes_nothing(open_house: House, paid: FakeStripe) -> None:
    body, header = paid.signed(paid.events[-1])
    for sent in (None, header[:-1], "t=1,v1=2"):
        status, answer = await post(open_house, body, sent)
        assert (status, answer["error"]["code"]) == (400, "webhook_refused")
        assert WEBHOOK_SECRET not in str(answer)
    status, _ = await post(open_house, BytesIO(b"x" * (2**20 + 1)), header)
    assert status == 413
    assert await open_house.balance() == CREDIT


async def test_gateways_that_were_not_told_are_told_by_the_next_delivery(
    open_house: House, paid: FakeStripe
) -> None:
    """The credit is in the books, Valkey was away: Stripe gets a 503, comes again, and then they know."""
    body, header = paid.signed(paid.events[-1])
    desk = open_house.desk
    assert desk.stripe is not None
    gone = Valkey.connect("redis://127.0.0.1:1")
    open_house.app.state.desk = replace(desk, stripe=replace(desk.stripe, admission=Admission(gone)))
    try:
        assert (await post(open_house, body, header))[0] == 503
    finally:
        open_house.app.state.desk = desk
        await gone.close()
    assert await open_house.balance() == CREDIT + 3 * 10**15
    assert (await post(open_house, body, header))[0] == 200
    await open_house.admission.admit(open_house.tenant_id, Femto(CREDIT + 3 * 10**15))


async def test_without_a_secret_there_is_nothing_there(house: House) -> None:
    async with house.session.post(house.url + PATH, data=b"{}") as answer:
        assert answer.status == 404
