"""Requests made up from our own OpenAPI document, and answers held to it."""

import asyncio
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from billing.tenancy.api_key import KeyTerms
from tests.conformance.stack import Stack
from tests.gateway.conftest import EPOCH

CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,  # the last one
]
MODES = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]


@pytest.fixture
async def described(stack: Stack) -> list[Any]:
    """All operations of the document."""
    async with stack.house.session.get(f"{stack.house.url}/openapi.json") as answer:
        document = await answer.json()
    schema = schemathesis.openapi.from_dict(document)
    return [result.ok() for result in schema.get_all_operations()]


@pytest.fixture
async def keys(stack: Stack) -> tuple[str, str]:
    """One that infers, and one that manages."""
    terms = KeyTerms(scopes=frozenset({"management"}))
    managing = await stack.house.parts.tenancy.create_key(stack.house.tenant_id, "m", EPOCH, terms=terms)
    return stack.house.key, managing.secret


@settings(suppress_health_check=list(HealthCheck))
@given(data=st.data())
async def test_no_answer_contradicts_the_document(
    data: Any, stack: Stack, described: list[Any], keys: tuple[str, str]
) -> None:
    stack.source.script = lambda _: stack.dialect.says("Hello")
    operation = data.draw(st.sampled_from(described))
    case = data.draw(operation.as_strategy(generation_mode=data.draw(st.sampled_from(MODES))))
    right, wrong = reversed(keys) if operation.path.startswith("/v1/organization") else keys
    key = data.draw(st.sampled_from((right, right, right, right, wrong, "")))
    if (
        isinstance(case.body, dict)
        and isinstance(case.body.get("model"), str)
        and data.draw(st.integers(0, 9))
    ):
        case.body["model"] = stack.model
    headers = {"authorization": f"Bearer {key}"} if key else {}
    answer = await asyncio.to_thread(case.call, base_url=stack.house.url, headers=headers)
    # It holds each event to the schema of the whole stream; `chunks` looks at those.
    streamed = stack.recorder.exchanges[-1].streamed
    case.validate_response(answer, checks=CHECKS[:-1] if streamed else CHECKS)
