"""One table for all error trees."""

import json
from collections.abc import Iterator

import pytest

from billing.errors import BillingError
from engine.api import EngineError
from gateway.errors import TABLE, Answer, answer_of
from gateway.paths import speaks_anthropic
from gateway.refusal import GatewayError
from recipe.errors import RecipeError


def leaves(root: type[Exception]) -> Iterator[type[Exception]]:
    children = root.__subclasses__()
    if not children:
        yield root
    for child in children:
        yield from leaves(child)


ROOTS = (BillingError, EngineError, RecipeError, GatewayError)
LEAVES = [leaf for root in ROOTS for leaf in leaves(root)]


@pytest.mark.parametrize("leaf", LEAVES, ids=[leaf.__name__ for leaf in LEAVES])
def test_each_leaf_of_each_tree_has_its_row(leaf: type[Exception]) -> None:
    assert leaf in TABLE


def test_no_row_is_for_something_that_is_no_error_of_ours() -> None:
    assert all(issubclass(error, ROOTS) for error in TABLE)


def test_an_unknown_error_is_500_and_says_nothing() -> None:
    answer = answer_of(KeyError("canary"))
    assert answer.status == 500
    assert b"canary" not in answer.body


def test_the_shape_is_the_one_that_clients_read() -> None:
    error = json.loads(answer_of(KeyError()).body)["error"]
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (402, "billing_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (409, "invalid_request_error"),
        (413, "request_too_large"),
        (422, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
        (529, "overloaded_error"),
    ],
)
def test_anthropics_types_go_by_the_status(status: int, kind: str) -> None:
    answer = Answer(status, "some_type", "said", "some_code", "some_param")
    assert json.loads(answer.anthropic("req")) == {
        "type": "error",
        "error": {"type": kind, "message": "said"},
        "request_id": "req",
    }
    assert answer.anthropic_status == (400 if status == 422 else status)


def test_a_key_that_a_message_quotes_is_masked_in_both_shapes() -> None:
    secret = f"kv_live_{'a' * 43}"
    answer = Answer(400, "invalid_request_error", f"no such thing: {secret}")
    assert secret.encode() not in answer.body + answer.anthropic("req")


@pytest.mark.parametrize(
    ("path", "headers", "speaks"),
    [
        ("/v1/messages", {}, True),
        ("/anthropic/v1/messages/", {}, True),
        ("/v1/messages/count_tokens", {}, True),
        ("/anthropic/v1/models", {}, True),
        ("/v1/models", {"anthropic-version": "2023-06-01"}, True),
        ("/v1/models", {}, False),
        ("/v1/chat/completions", {}, False),
        ("/anthropical", {}, False),
    ],
)
def test_who_asks_gets_errors_in_its_protocols_shape(
    path: str, headers: dict[str, str], speaks: bool
) -> None:
    assert speaks_anthropic(path, headers) == speaks
