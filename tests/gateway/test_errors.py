"""One table for all error trees."""

import json
from collections.abc import Iterator

import pytest

from billing.errors import BillingError
from engine.api import EngineError
from gateway.errors import TABLE, answer_of
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
