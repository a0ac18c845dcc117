"""Everything the gateway itself refuses or misses, as a tree. `gateway.errors` gives each leaf its status.

GatewayError
├── KeyRefused          no key, a truncated, unknown, revoked or lapsed one
├── NotPermitted        this key may not do this
├── ModelUnknown        no such public model here
├── BodyTooLarge        the body passes the size limit
├── BalanceInsufficient the balance does not cover the hold
├── BalanceHeld         it would, were it not for requests in flight
├── BalanceUnknown      Valkey has no balance of this tenant: project it and ask again
├── ValkeyUnavailable   Valkey did not answer: nobody is admitted
├── ChargeUnknown       the request was served, but whether its charge is in the books is not known yet
├── Draining            this process is stopping
├── ClientGone          nobody is left to be answered
├── DeadlinePassed      the engine was not done in the time the hold covers
└── ReaderStalled       the client did not read its answer in the time the hold covers
"""


class GatewayError(Exception):
    """Root of the tree."""


class KeyRefused(GatewayError):
    """The bearer key is missing, malformed, unknown, revoked or lapsed. It is never itself part of this."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NotPermitted(GatewayError):
    """The key is good, and may not do this: its scopes, its models or its networks say so."""

    def __init__(self, reason: str, param: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.param = param


class ModelUnknown(GatewayError):
    """No public model has this name."""

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.model = model


class BodyTooLarge(GatewayError):
    """The request body is longer than the limit, in bytes."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max)
        self.bytes_max = bytes_max


class BalanceInsufficient(GatewayError):
    """The tenant's balance, all of it, is less than the request's worst case."""


class BalanceHeld(GatewayError):
    """The balance would cover the hold if requests in flight did not hold it; it pays to ask again."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(retry_after_s)
        self.retry_after_s = retry_after_s


class BalanceUnknown(GatewayError):
    """Valkey has no balance of this tenant (new, or wiped): project the ledger's and ask once more."""


class ValkeyUnavailable(GatewayError):
    """Valkey is not reachable, loading, or refuses writes. Paid requests are refused, never waved through."""


class ChargeUnknown(GatewayError):
    """The database did not take the charge; the sweeper asks it again, and charges what workers attest."""


class Draining(GatewayError):
    """This process stops and takes no new request; another one will."""


class ClientGone(GatewayError):
    """The client left before there was anything to answer."""


class DeadlinePassed(GatewayError):
    """The request's deadline passed before its end."""


class ReaderStalled(GatewayError):
    """The deadline passed while the client left its answer unread."""
