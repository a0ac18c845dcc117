"""The one table that turns errors into answers (conventions C6). What is not in it is a silent 500.

The shape is OpenAI's and DeepSeek's, ``{"error": {"message", "type", "param", "code"}}``, or Anthropic's,
``{"type": "error", "error": {"type", "message"}, "request_id"}``: `gateway.paths.speaks_anthropic` says who
gets which.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from billing import errors as billing
from billing.tenancy.keys import masked
from engine import api as engine
from gateway import refusal
from recipe import errors as recipe

RETRY_AFTER_S: Final = 5
RECEIPT_RETRY_AFTER_S: Final = 3_600  # receipts are sealed every hour
ANTHROPIC_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """An error as the client gets it. ``type`` and ``code`` are OpenAI's words where it has one."""

    status: int
    type: str
    message: str
    code: str | None = None
    param: str | None = None
    retry_after_s: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        """The JSON body, also framed as an event after a stream has begun. Messages quote what was sent."""
        error = {"message": masked(self.message), "type": self.type, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    @property
    def anthropic_status(self) -> int:
        """The status in Anthropic's protocol, which knows no 422."""
        return 400 if self.status == 422 else self.status

    def anthropic(self, request_id: str) -> bytes:
        """The JSON body in Anthropic's shape; a type goes by its status."""
        other = "api_error" if self.status >= 500 else "invalid_request_error"
        error = {"type": ANTHROPIC_TYPES.get(self.status, other), "message": masked(self.message)}
        return msgspec.json.encode({"type": "error", "error": error, "request_id": request_id})


def _invalid(status: int, message: str, param: str | None, code: str | None) -> Answer:
    return Answer(status, "invalid_request_error", message, code, param)


def _unavailable(reason: str, retry_after_s: int = RETRY_AFTER_S) -> Callable[[Any], Answer]:
    message = f"{reason}; nothing was charged, try again"
    return lambda _: Answer(503, "service_unavailable", message, "service_unavailable", None, retry_after_s)


def _charge_unknown(_: object) -> Answer:
    message = "the answer could not be accounted for yet; what was generated is charged at most once"
    return Answer(503, "service_unavailable", message, "charge_unknown", None, RETRY_AFTER_S)


def _internal(_: object) -> Answer:
    return Answer(500, "server_error", "internal error; nothing was charged", "internal_error")


def _payment(code: str, message: str, retry_after_s: int | None = None) -> Answer:
    return Answer(402, code, message, code, None, retry_after_s)


def _budget(error: refusal.BudgetReached) -> Answer:
    """402, not OpenAI's 429: clients surface 402 at once and retry every 429. They know the code."""
    budget = error.budget
    message = f"the {budget.period} budget {budget.id} of the {budget.level} {budget.owner_id} is spent"
    return _payment("insufficient_quota", message)


def _budget_held(error: refusal.BudgetHeld) -> Answer:
    message = (
        f"requests in flight hold the rest of the {error.budget.period} budget {error.budget.id}; try again"
    )
    return _payment("budget_held", message, error.retry_after_s)


def _limit(error: refusal.LimitReached) -> Answer:
    """The limit by its name; OpenAI's clients leave it at the first answer where waiting never helps."""
    limit, code = error.limit, "rate_limit_exceeded"
    headers = {**error.quota.headers, **({"x-should-retry": "false"} if error.never else {})}
    param = f"{limit.level}.{limit.measure}"
    return Answer(429, code, f"limit reached: {error}", code, param, error.retry_after_s, headers)


def _idempotency(code: str, message: str) -> Answer:
    return _invalid(409, message, "Idempotency-Key", code)


def _no_price(error: billing.PriceMissing) -> Answer:
    return _invalid(
        404, f"the model {error.model!r} is not offered in {error.currency}", "model", "model_not_found"
    )


def _no_tier(error: billing.TierMissing) -> Answer:
    return _invalid(400, str(error), "service_tier", "service_tier_unavailable")


def _no_model(error: refusal.ModelUnknown) -> Answer:
    message = f"the model {error.model!r} does not exist"
    if error.answers is not None:
        message = f"the model {error.model!r} is an alias of {error.answers!r}, which is not served here"
    return _invalid(404, message, "model", "model_not_found")


def _suspended(error: refusal.TenantSuspended) -> Answer:
    """402 where paying ends it, which clients show at once; 403 where it takes the operator."""
    if error.by == "dunning":
        return _payment("tenant_suspended", "this organisation is suspended until overdue invoices are paid")
    return Answer(403, "permission_error", "this organisation is suspended", "tenant_suspended")


def _no_key(error: refusal.KeyRefused) -> Answer:
    return Answer(401, "authentication_error", error.reason, "invalid_api_key")


def _no_worker(error: engine.EngineUnavailable) -> Answer:
    return _unavailable("no worker can take the request now", error.retry_after_s)(error)


TABLE: Final[Mapping[type[Exception], Callable[[Any], Answer]]] = {
    # what the client sent
    recipe.BodyMalformed: lambda e: _invalid(400, str(e), None, "invalid_json"),
    recipe.ParameterInvalid: lambda e: _invalid(
        400 if e.malformed else 422, str(e), e.param, "invalid_parameter"
    ),
    recipe.ParameterUnsupported: lambda e: _invalid(400, str(e), e.param, "unsupported_parameter"),
    recipe.PromptTooLong: lambda e: _invalid(400, str(e), e.param, "context_length_exceeded"),
    engine.PromptRefused: lambda e: _invalid(400, e.message, "messages", "prompt_refused"),
    engine.ImageRefused: lambda e: _invalid(400, e.message, "messages", "image_refused"),
    engine.ConstraintRefused: lambda e: _invalid(400, e.message, "response_format", "unsupported_parameter"),
    billing.WebhookRefused: lambda e: _invalid(400, str(e), None, "webhook_refused"),
    refusal.BodyTooLarge: lambda e: _invalid(
        413, f"the request body is longer than {e.bytes_max} bytes", None, "body_too_large"
    ),
    refusal.ImageNotFetched: lambda e: _invalid(400, str(e), e.param, "invalid_image_url"),
    refusal.KeyRefused: _no_key,
    refusal.NotPermitted: lambda e: Answer(403, "permission_error", e.reason, "not_permitted", e.param),
    refusal.TenantSuspended: _suspended,
    refusal.ModelUnknown: _no_model,
    billing.MovementConflict: lambda e: _idempotency("idempotency_key_reused", str(e)),
    billing.PriceMissing: _no_price,
    refusal.IdempotencyKeyReused: lambda _: _idempotency(
        "idempotency_key_reused", "this idempotency key was used with another path or body"
    ),
    refusal.IdempotencyResultLost: lambda e: _idempotency(
        "idempotency_result_lost",
        f"this idempotency key was answered, and charged once, but its answer cannot be given again:"
        f" {e.reason}; another key asks anew",
    ),
    refusal.AnsweredMeanwhile: lambda _: _idempotency(
        "idempotency_key_in_use", "another request has answered this idempotency key; this one costs nothing"
    ),
    billing.TierMissing: _no_tier,
    # what a tenant's management names or wants
    billing.ProjectMissing: lambda e: _invalid(404, str(e), None, "not_found"),
    billing.KeyMissing: lambda e: _invalid(404, str(e), None, "not_found"),
    billing.UserMissing: lambda e: _invalid(404, str(e), None, "not_found"),
    billing.WebhookMissing: lambda e: _invalid(404, str(e), None, "not_found"),
    billing.NoticeMissing: lambda e: _invalid(404, str(e), None, "not_found"),
    billing.LimitMissing: lambda e: _invalid(404, str(e), None, "not_found"),
    billing.InvoiceMissing: lambda e: _invalid(404, str(e), None, "not_found"),
    billing.ReceiptMissing: lambda e: _invalid(404, str(e), None, "not_found"),
    billing.HeadMissing: lambda e: _invalid(404, str(e), None, "not_found"),
    billing.ReceiptPending: lambda e: replace(
        _invalid(404, str(e), None, "receipt_pending"), retry_after_s=RECEIPT_RETRY_AFTER_S
    ),
    billing.ProjectExists: lambda e: _invalid(409, str(e), "name", "already_exists"),
    billing.UserExists: lambda e: _invalid(409, str(e), "email", "already_exists"),
    billing.TenancyInvalid: lambda e: _invalid(422, str(e), e.field, "invalid_parameter"),
    billing.IntervalInvalid: lambda e: _invalid(422, str(e), None, "invalid_parameter"),
    billing.LimitInvalid: lambda e: _invalid(422, str(e), None, "invalid_parameter"),
    billing.AmountInvalid: lambda e: _invalid(422, str(e), "amount", "invalid_parameter"),
    billing.ReportInvalid: lambda e: _invalid(422, str(e), e.field, "invalid_parameter"),
    billing.ExportMissing: lambda e: _invalid(404, str(e), None, "not_found"),
    billing.ExportsBusy: lambda e: Answer(
        429, "rate_limit_exceeded", str(e), "rate_limit_exceeded", "exports", RETRY_AFTER_S
    ),
    # what it cannot pay for
    refusal.BalanceInsufficient: lambda _: _payment(
        "insufficient_balance",
        "the balance does not cover this request at its dearest; top up, or ask for fewer max_tokens",
    ),
    billing.BalanceExhausted: lambda _: _payment(
        "insufficient_balance", "the balance does not cover this request"
    ),
    refusal.BalanceHeld: lambda e: _payment(
        "balance_held", "requests in flight hold the balance; try again when they are done", e.retry_after_s
    ),
    refusal.BudgetReached: _budget,
    refusal.BudgetHeld: _budget_held,
    refusal.LimitReached: _limit,
    # what is not there just now
    refusal.LogBusy: lambda _: Answer(
        429, "rate_limit_exceeded", "the log is asked too often just now", "rate_limit_exceeded", None, 1
    ),
    refusal.ProjectionMissing: _unavailable("what may be spent is not known yet"),
    refusal.ValkeyUnavailable: _unavailable("admission is not reachable"),
    billing.StoreUnavailable: _unavailable("the database is not reachable"),
    engine.EngineUnavailable: _no_worker,
    engine.EngineFailed: _unavailable("the worker failed"),
    engine.WorkerAnswerInvalid: _unavailable("a worker gave an invalid answer"),
    engine.GenerationCancelled: _unavailable("the generation was stopped"),
    refusal.ChargeUnknown: _charge_unknown,
    refusal.OriginalFailed: lambda _: Answer(
        503,
        "service_unavailable",
        "the request that was answering this idempotency key has failed; try again",
        "service_unavailable",
        None,
        1,
    ),
    refusal.Draining: _unavailable("this server is stopping", 1),
    refusal.ImagesBusy: _unavailable("too many images are being fetched"),
    refusal.DeadlinePassed: _unavailable("the request took too long"),
    refusal.ReaderStalled: lambda _: _invalid(408, "the answer was not read in time", None, "reader_stalled"),
    refusal.ClientGone: lambda _: Answer(499, "client_gone", "the client closed the request", "client_gone"),
    # what is our fault, or comes from the operator's tools alone
    recipe.ModelUnreadable: _internal,
    recipe.UsageMalformed: _internal,
    billing.UsageInvalid: _internal,
    billing.PriceInvalid: _internal,
    billing.PriceConflict: _internal,
    billing.PlanMissing: _internal,
    billing.PlanConflict: _internal,
    billing.ReasonMissing: _internal,
    billing.AliasInvalid: _internal,
    billing.AliasMissing: _internal,
    billing.AmountExceeds: _internal,
    billing.TenantMissing: _internal,
    billing.TenantExists: _internal,
    billing.ChargeUnexplained: _internal,
    billing.ErasureRefused: _internal,
    billing.PaymentDeclined: _internal,
    billing.PaymentUnknown: _internal,
    billing.PaymentRefused: _internal,
    billing.PaymentUnavailable: _internal,
    billing.PaymentsMissing: _internal,
    billing.RolesMissing: _internal,
    billing.ReceiptInvalid: _internal,
    billing.BundleInvalid: _internal,
    billing.ProofBroken: _internal,
    billing.TermsInvalid: _internal,
    billing.UsageUnexplained: _internal,
    billing.PeriodOpen: _internal,
    billing.InvoiceInvalid: _internal,
    billing.DocumentUnprintable: _internal,
    billing.InvoiceConflict: _internal,
    billing.StoreRefused: _internal,
}


def answer_of(error: Exception) -> Answer:
    """Find the answer to an error: its own row, else that of its nearest base, else a bare 500."""
    for ancestor in type(error).__mro__:
        row = TABLE.get(ancestor)
        if row is not None:
            return row(error)
    return _internal(error)
