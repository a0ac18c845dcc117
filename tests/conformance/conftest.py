"""The stack that real clients drive, for a model that does not think and for one that does."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import settings

from recipe import registry
from recipe.registry import Recipe
from tests.conformance import chunks
from tests.conformance.shapes import refusal_faults
from tests.conformance.stack import Stack, stacked
from tests.recipe.conftest import (  # noqa: F401  # fixtures of a small model of DeepSeek's kind
    deepseek_model_dir,
    deepseek_tokenizer_json,
    eyed_dir,
    write_model,
)

settings.register_profile("fuzz", deadline=None, max_examples=10_000)
CONTEXT_TOKENS = 200_000  # agents' prompts are long, and nobody computes them here


@pytest.fixture(scope="session")
def chatml(model_dir: Path) -> Recipe:
    """The default model's recipe."""
    return registry.load(model_dir, "smollm2-135m-instruct", context_tokens=CONTEXT_TOKENS)


@pytest.fixture(scope="session")
def deepseek(deepseek_model_dir: Path) -> Recipe:  # noqa: F811  # the fixture imported above
    """The recipe of a model that thinks."""
    return registry.load(deepseek_model_dir, "deepseek-flash", context_tokens=CONTEXT_TOKENS)


@pytest.fixture(scope="session")
def eyed(eyed_dir: Path) -> Recipe:  # noqa: F811  # the fixture imported above
    """The recipe of a model that reads images."""
    return registry.load(eyed_dir, "eyed", context_tokens=CONTEXT_TOKENS)


def unfit(stack: Stack) -> list[str]:
    """What the strictest clients would say of everything that was streamed, and of every refusal."""
    refusals = [
        f"{exchange.path}: {fault}"
        for exchange in stack.asked
        if exchange.status >= 400
        for fault in refusal_faults(exchange.path, exchange.status, exchange.answer, blames=False)
    ]
    return refusals + [
        f"{exchange.path}: {fault}"
        for exchange in stack.recorder.exchanges
        if exchange.streamed
        for fault in chunks.faults(
            exchange.path, json.loads(exchange.body), exchange.headers, exchange.answer
        )
    ]


@pytest.fixture
async def stack(database_url: str, valkey_url: str, chatml: Recipe) -> AsyncIterator[Stack]:
    """The default model's stack; whatever was streamed is looked at afterwards."""
    async with stacked((database_url, valkey_url), chatml) as stack:
        yield stack
    assert unfit(stack) == []


@pytest.fixture
async def thinker(database_url: str, valkey_url: str, deepseek: Recipe) -> AsyncIterator[Stack]:
    """The same for a model that thinks."""
    async with stacked((database_url, valkey_url), deepseek) as stack:
        yield stack
    assert unfit(stack) == []


@pytest.fixture
async def eyes(database_url: str, valkey_url: str, eyed: Recipe) -> AsyncIterator[Stack]:
    """The same for a model that reads images."""
    async with stacked((database_url, valkey_url), eyed) as stack:
        yield stack
    assert unfit(stack) == []


@pytest.fixture
async def limited(database_url: str, valkey_url: str, chatml: Recipe) -> AsyncIterator[Stack]:
    """A stack whose key has a limit (`Stack.exhaust`)."""
    async with stacked((database_url, valkey_url), chatml, limited=True) as stack:
        yield stack
    assert unfit(stack) == []
