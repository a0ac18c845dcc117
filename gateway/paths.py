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
# What clients ask without a key, to see whether somebody is there.
LIVE: Final = ("/", "/v1", "/beta", "/anthropic", "/api/hello", "/anthropic/api/hello", "/livez")
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
        or asked.startswith("/anthropic/")
        or asked.endswith(("/messages", "/messages/count_tokens"))
    )
