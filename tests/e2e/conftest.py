"""One real stack for the session: `kvitto up` on a fresh directory, real Postgres, Valkey, vLLM and model.

Tests own a tenant each, so none depends on another's prompts, money or order.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.letters import letter as write_letter
from tests.e2e.stack import PAIR, Stack, Tenant, housed

STORE_BYTES = 40 * 2**20  # some 27 blocks of the default model


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """A stack with a worker of each kind, started by `kvitto up --detach`."""
    with housed() as made:
        made.up(*PAIR)
        yield made


@pytest.fixture
def house(model_dir: Path) -> Iterator[Stack]:
    """A stack that a test starts in a shape of its own; its store holds one long prompt, not two."""
    with housed(model_dir, KVITTO_STORE_BYTES_MAX=str(STORE_BYTES)) as made:
        yield made


@pytest.fixture
def tenant(stack: Stack) -> Tenant:
    """A tenant of this test alone, with one dollar of credit."""
    return stack.tenant()


@pytest.fixture(scope="session")
def letter() -> Callable[[int], str]:
    """Writes a letter of about 1,200 tokens of plain English; another one for each seed."""
    return write_letter
