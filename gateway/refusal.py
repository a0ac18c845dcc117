"""Everything the gateway itself refuses or misses, as a tree. `gateway.errors` gives each leaf its status.

GatewayError
├── KeyRefused          no key, a truncated, unknown, revoked or lapsed one
├── NotPermitted        this key may not do this
├── TenantSuspended     the key's tenant is suspended: no inference
├── ModelUnknown        no such public model here
├── BodyTooLarge        the body passes the size limit
├── BalanceInsufficient the balance does not cover the hold
├── BalanceHeld         it would, were it not for requests in flight
├── BudgetReached       a hard budget is spent for its period
├── BudgetHeld          it would bear the hold, were it not for requests in flight
├── LimitReached        a limit of requests, tokens or concurrency is used up for now
├── LogBusy             the receipt log is asked too often just now
├── ProjectionMissing   Valkey does not know a balance, budget or day's use: project it and ask again
├── ValkeyUnavailable   Valkey did not answer: nobody is admitted
├── ChargeUnknown       the request was served, but whether its charge is in the books is not known yet
├── ImageNotFetched     an image cannot be had from where the client says that it lies
├── ImagesBusy          this process fetches as many images as it may
├── IdempotencyKeyReused   the idempotency key belongs to another body
├── IdempotencyResultLost  the idempotency key has been answered, and the answer is not kept
├── AnsweredMeanwhile   another request answered the same idempotency key first; this one costs nothing
├── OriginalFailed      the request that was to answer the idempotency key has not
├── Draining            this process is stopping
├── ClientGone          nobody is left to be answered
├── DeadlinePassed      the engine was not done in the time the hold covers
└── ReaderStalled       the client did not read its answer in the time the hold covers
"""

from dataclasses import dataclass
from datetime import datetime

from billing.tenancy.limits import Budget, Limit
from billing.tenancy.tenant import SuspendedBy
from gateway.admission.limits import Counted
from gateway.admission.quota import Quota


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


class TenantSuspended(GatewayError):
    """The key is good, and its tenant suspended: it may read, and ask no model. Why is not told to a key."""

    def __init__(self, by: SuspendedBy) -> None:
        super().__init__(by)
        self.by = by


class ModelUnknown(GatewayError):
    """No public model has this name; or one does that is not served here, named by ``answers``."""

    def __init__(self, model: str, answers: str | None = None) -> None:
        super().__init__(model)
        self.model = model
        self.answers = answers


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


class BudgetReached(GatewayError):
    """What is spent in a hard budget's period and the request's worst case pass it; waiting does not help."""

    def __init__(self, budget: Budget) -> None:
        super().__init__(budget.id)
        self.budget = budget


class BudgetHeld(GatewayError):
    """A hard budget would bear the hold if requests in flight held less of it; it pays to ask again."""

    def __init__(self, budget: Budget, retry_after_s: int) -> None:
        super().__init__(budget.id, retry_after_s)
        self.budget = budget
        self.retry_after_s = retry_after_s


@dataclass(eq=False)
class LimitReached(GatewayError):
    """A limit refuses; the request has taken nothing of any.

    Attributes:
        cost: what the request would have taken of it.
        retry_after_s: when it would, at most a minute; a day's limit may take longer (``quota``).
        quota: what is left of this limit, and of the tightest of the other kind.
    """

    limit: Limit
    cost: int
    retry_after_s: int
    quota: Quota

    @property
    def never(self) -> bool:
        """Whether waiting does not help: the request asks for more than the limit ever gives."""
        return self.limit.amount == 0 or self.cost > self.limit.amount

    def __str__(self) -> str:
        limit = self.limit
        of = [f"the {limit.level} {limit.owner_id}"]
        of += [f"model {limit.model!r}"] if limit.model else []
        of += ["this user_id"] if limit.per_user else []
        named = f"{limit.measure} of {', '.join(of)}: limit {limit.amount}, requested {self.cost}"
        return f"{named}, which is never possible" if self.never else named


class LogBusy(GatewayError):
    """Everybody together asks for the receipt log more often than this process answers."""


@dataclass(eq=False)
class ProjectionMissing(GatewayError):
    """Valkey does not know something (new, wiped, another period): project Postgres' and ask once more.

    ``at`` is its TIME, by which periods and days are to be read.
    """

    at: datetime
    balance: bool
    days: tuple[Counted, ...]
    budgets: tuple[Budget, ...]


class ValkeyUnavailable(GatewayError):
    """Valkey is not reachable, loading, or refuses writes. Paid requests are refused, never waved through."""


class ChargeUnknown(GatewayError):
    """The database did not take the charge; the sweeper asks it again, and charges what workers attest."""


class ImageNotFetched(GatewayError):
    """An image was not had from its URL; ``reason`` tells nothing of what stands behind other addresses."""

    def __init__(self, param: str, reason: str) -> None:
        super().__init__(f"the image at '{param}' was not fetched: {reason}")
        self.param = param
        self.reason = reason


class ImagesBusy(GatewayError):
    """No fetch ended in time to begin that of this request's images. Nothing has been held for it."""


class IdempotencyKeyReused(GatewayError):
    """The idempotency key came with another path or body before."""


class IdempotencyResultLost(GatewayError):
    """The idempotency key has been answered, and charged once; ``reason`` says why the answer is not here."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class AnsweredMeanwhile(GatewayError):
    """Another request answered the same idempotency key first. It alone is charged."""


class OriginalFailed(GatewayError):
    """The request that this one waited for has ended without an answer; asking again starts anew."""


class Draining(GatewayError):
    """This process stops and takes no new request; another one will."""


class ClientGone(GatewayError):
    """The client left before there was anything to answer."""


class DeadlinePassed(GatewayError):
    """The request's deadline passed before its end."""


class ReaderStalled(GatewayError):
    """The deadline passed while the client left its answer unread."""
