"""Whether a webhook is Stripe's: HMAC-SHA256 over its timestamp and raw body, and the timestamp is recent.

Written here and not taken from the SDK, whose check asks the machine's clock, and which takes a third of a
second to import: the process that receives webhooks tells Stripe nothing.
"""

import hmac
from datetime import UTC, datetime, timedelta
from typing import Final

from billing.errors import WebhookRefused

HEADER: Final = "stripe-signature"
TOLERANCE: Final = timedelta(seconds=300)

_TIMESTAMP_DIGITS_MAX: Final = 11


def check(body: bytes, header: str | None, secret: str, at: datetime) -> None:
    """See that ``header`` signs this body, made within the tolerance of ``at`` on either side.

    Args:
        body: as it came.
        header: ``t=seconds,v1=hex``, several ``v1`` while a secret is rolled; other schemes are not read.
        secret: the endpoint's, ``whsec_…``.
        at: the instant of receipt.

    Raises:
        WebhookRefused: it does not.
    """
    pairs = [pair.partition("=")[::2] for pair in (header or "").split(",")]
    stamps = [value.strip() for name, value in pairs if name.strip() == "t"]
    if len(stamps) != 1 or not _is_timestamp(stamps[0]):
        raise WebhookRefused("it has no Stripe-Signature with one timestamp")
    expected = hmac.digest(secret.encode(), f"{stamps[0]}.".encode() + body, "sha256").hex().encode()
    signatures = [value.strip().encode() for name, value in pairs if name.strip() == "v1"]
    if not any(hmac.compare_digest(expected, signature) for signature in signatures):
        raise WebhookRefused("no signature of it is by this endpoint's secret")
    if abs(datetime.fromtimestamp(int(stamps[0]), UTC) - at) > TOLERANCE:
        raise WebhookRefused(f"it was signed more than {TOLERANCE.seconds} s from now")


def _is_timestamp(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _TIMESTAMP_DIGITS_MAX
