"""One real stack for the session: `kvitto up` on a fresh directory, real Postgres, Valkey, vLLM and model.

Tests own a tenant each, so none depends on another's prompts, money or order.
"""

from collections.abc import Callable, Iterator

import pytest

from tests.e2e.letters import letter as write_letter
from tests.e2e.stack import Stack, Tenant, fresh_stack


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """A stack of one prefill and one decode worker."""
    with fresh_stack() as started:
        yield started


@pytest.fixture
def tenant(stack: Stack) -> Tenant:
    """A tenant of this test alone, with one dollar of credit."""
    return stack.tenant()


@pytest.fixture(scope="session")
def letter() -> Callable[[int], str]:
    """Writes a letter of about 1,200 tokens of plain English; another one for each seed."""
    return write_letter
