"""What Stripe tells us. Served only where its secret is set; the signature is all that lets it in."""

from typing import Any, Final

from litestar import post

from billing.payments.signature import HEADER
from gateway import paths
from gateway.desk import AnyRequest, desk_of

BODY_BYTES_MAX: Final = 2**20


@post(list(paths.STRIPE), status_code=200, request_max_body_size=BODY_BYTES_MAX)
async def receive(request: AnyRequest) -> dict[str, Any]:
    """Take in a webhook, and show gateways what can be spent since.

    Any answer but 200 makes Stripe send it again, and again is safe: also where the books have it already and
    Valkey could not be told.
    """
    desk = desk_of(request)
    assert desk.stripe is not None, "without a secret there is no route"
    body, at = await request.body(), await desk.organization.clock.now()
    receipt = await desk.stripe.inbox.receive(body, request.headers.get(HEADER), at)
    for version in receipt.balances:
        await desk.stripe.admission.project(version)
    return {"received": receipt.event_id, "new": receipt.new}
