"""Where each surface answers, and in whose shape.

Clients append to a base URL that ends with nothing, `/v1`, `/beta` or `/anthropic`. A path with a slash too
many, at its end or within, is served as if without: never redirected, since clients drop their key then.
"""

from collections.abc import Mapping
from typing import Final

CHAT: Final = ("/v1/chat/completions", "/chat/completions", "/beta/chat/completions")
RESPONSES: Final = ("/v1/responses", "/responses")
INPUT_TOKENS: Final = ("/v1/responses/input_tokens", "/responses/input_tokens")
MESSAGES: Final = ("/v1/messages", "/anthropic/v1/messages")
COUNT_TOKENS: Final = ("/v1/messages/count_tokens", "/anthropic/v1/messages/count_tokens")
COMPLETIONS: Final = ("/v1/completions", "/completions", "/beta/completions")
MODELS: Final = ("/v1/models", "/models", "/beta/models", "/anthropic/v1/models")
MODEL: Final = tuple(f"{path}/{{name:path}}" for path in MODELS)
BALANCE: Final = ("/user/balance", "/v1/user/balance", "/beta/user/balance")
USAGE_COMPLETIONS: Final = ("/v1/organization/usage/completions",)
COSTS: Final = ("/v1/organization/costs",)
USAGE_REPORT: Final = (
    "/v1/organizations/usage_report/messages",
    "/anthropic/v1/organizations/usage_report/messages",
)
COST_REPORT: Final = ("/v1/organizations/cost_report", "/anthropic/v1/organizations/cost_report")
MONTHLY_USAGE: Final = ("/v1/organization/usage/deepseek/{file:str}",)
# What clients ask without a key, to see whether somebody is there.
LIVE: Final = ("/", "/v1", "/beta", "/anthropic", "/api/hello", "/anthropic/api/hello", "/livez")
RECEIPT: Final = ("/v1/receipts/{request_id:str}",)
# The receipt log, for witnesses that have no key.
RECEIPT_LOG: Final = ("/v1/receipts/log",)
LOG_HEADS: Final = ("/v1/receipts/log/heads",)
LOG_CONSISTENCY: Final = ("/v1/receipts/log/consistency",)
LOG_CERTIFICATES: Final = ("/v1/receipts/log/certificates",)
READY: Final = ("/readyz",)
METRICS: Final = ("/metrics",)
DESCRIPTION: Final = ("/openapi.json",)
REFERENCE: Final = ("/docs",)
STRIPE: Final = ("/webhooks/stripe",)


def speaks_anthropic(path: str, headers: Mapping[str, str]) -> bool:
    """Whether who asks this expects answers that are no surface's own (errors, models) in Anthropic's shape.

    Args:
        path: as it came.
        headers: by lower-case name.
    """
    asked = path.rstrip("/")
    return (
        "anthropic-version" in headers
        or asked.startswith(("/anthropic/", "/v1/organizations/"))
        or asked.endswith(("/messages", "/messages/count_tokens"))
    )
