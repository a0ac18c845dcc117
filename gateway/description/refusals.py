"""What refusals look like, a status each: made by the table that makes them, so that none is made up."""

import json
from collections.abc import Mapping
from typing import Any, Final

from billing.tenancy.limits import Limit
from engine.api import EngineUnavailable
from gateway import refusal
from gateway.admission.quota import Left, Quota
from gateway.errors import Answer, answer_of
from recipe.errors import ParameterInvalid

REQUEST_ID: Final = "0193804f-6c2e-7c1f-9d3a-5f0e8a1b2c3d"
_SPENT: Final = Quota(requests=Left(60, 0, 41_000))
_RETRIED: Final = {"Retry-After": {"$ref": "#/components/headers/RetryAfter"}}

# What it is for, by status, and one error of it.
KINDS: Final[Mapping[int, tuple[str, Exception]]] = {
    400: (
        "The body, or a parameter of it, is malformed or not served; `param` names it.",
        ParameterInvalid("messages", "'messages' is missing", malformed=True),
    ),
    401: (
        "No key, or one that is unknown, revoked or expired; or two different ones.",
        refusal.KeyRefused("this API key is not known"),
    ),
    402: (
        "The balance or a budget does not cover the request; waiting helps only where `Retry-After` says so.",
        refusal.BalanceInsufficient(),
    ),
    403: (
        "The key may not do this.",
        refusal.NotPermitted("this API key may not ask the model 'smollm2-135m-instruct'", "model"),
    ),
    404: ("There is nothing of this name.", refusal.ModelUnknown("gpt-9")),
    409: (
        "The idempotency key belongs to another body, or its answer is not kept any more.",
        refusal.IdempotencyKeyReused(),
    ),
    413: ("The body is too long.", refusal.BodyTooLarge(4 * 2**20)),
    422: (
        "A parameter is out of its range; `param` names it. In Anthropic's protocol this is a 400.",
        ParameterInvalid("max_tokens", "'max_tokens' must be at least 1"),
    ),
    429: (
        "A limit of your key, project or organisation is used up.",
        refusal.LimitReached(Limit("key", "key_1", "requests_per_minute", 60), 1, 41, _SPENT),
    ),
    500: ("Our fault. Nothing is charged.", RuntimeError()),
    503: (
        "Something that is needed does not answer just now. Nothing is charged.",
        EngineUnavailable("decode-0", retry_after_s=5),
    ),
}


def responses(statuses: tuple[int, ...], shape: str) -> dict[str, Any]:
    """References by status; ``shape`` is ``openai``, ``anthropic`` or ``either``."""
    spoken = [status for status in sorted(statuses) if shape != "anthropic" or status != 422]
    return {str(status): {"$ref": f"#/components/responses/{_name(status, shape)}"} for status in spoken}


def components() -> dict[str, Any]:
    """Every response that `responses` refers to."""
    return {
        _name(status, shape): _response(said, answer_of(error), shape)
        for status, (said, error) in KINDS.items()
        for shape in ("openai", "anthropic", "either")
    }


def _name(status: int, shape: str) -> str:
    return f"Refused{status}{'' if shape == 'openai' else shape.title()}"


def _response(said: str, answer: Answer, shape: str) -> dict[str, Any]:
    openai = ("ErrorBody", json.loads(answer.body))
    anthropic = ("AnthropicErrorBody", json.loads(answer.anthropic(REQUEST_ID)))
    shown = {"openai": [openai], "anthropic": [anthropic], "either": [openai, anthropic]}[shape]
    schemas = [{"$ref": f"#/components/schemas/{name}"} for name, _ in shown]
    content = {
        "schema": schemas[0] if len(schemas) == 1 else {"oneOf": schemas},
        "examples": {name: {"value": example} for name, example in shown},
    }
    retried = _RETRIED if answer.retry_after_s is not None else {}
    return {
        "description": said,
        "headers": {"X-Request-Id": {"$ref": "#/components/headers/RequestId"}, **retried},
        "content": {"application/json": content},
    }


SCHEMAS: Final = {
    "ErrorBody": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": {"type": ["string", "null"], "description": "What of the request is wrong."},
                    "code": {"type": ["string", "null"]},
                },
            }
        },
    },
    "AnthropicErrorBody": {
        "type": "object",
        "required": ["type", "error", "request_id"],
        "properties": {
            "type": {"type": "string", "const": "error"},
            "error": {
                "type": "object",
                "required": ["type", "message"],
                "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
            },
            "request_id": {"type": "string"},
        },
    },
}
