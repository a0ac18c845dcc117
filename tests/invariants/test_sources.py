"""Each report of a fault in a system like this one, which we took as a case, has a test that names it."""

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

SOURCES = {
    "streams, disconnects, failures": (
        "BerriAI/litellm#14457",
        "BerriAI/litellm#36008",
        "QuantumNous/new-api#5235",
        "QuantumNous/new-api#4168",
        "QuantumNous/new-api#5289",
        "BerriAI/litellm#5118",
        "BerriAI/litellm#15740",
        "diegosouzapw/OmniRoute#9750",
        "BasedHardware/omi#15287",
    ),
    "admission": (
        "BerriAI/litellm#18730",
        "BerriAI/litellm#18728",
        "BerriAI/litellm#39309",
        "BerriAI/litellm#27955",
        "BerriAI/litellm#20256",
        "BerriAI/litellm#35533",
        "QuantumNous/new-api#6609",
        "songquanpeng/one-api#2440",
        "songquanpeng/one-api#1132",
        "pollinations/pollinations#8112",
        "maximhq/bifrost#2873",
        "gpustack/gpustack#6173",
    ),
    "time, price, rounding": (
        "BerriAI/litellm#34896",
        "BerriAI/litellm#22176",
        "BerriAI/litellm#8867",
        "theopenco/llmgateway#1193",
        "doublewordai/control-layer#227",
        "BerriAI/litellm#20615",
        "getlago/lago-api#4642",
        "polarsource/polar#6625",
    ),
    "money in": (
        "getlago/lago-api#5870",
        "anomalyco/opencode#28402",
        "danny-avila/LibreChat#13812",
        "openmeterio/openmeter#5118",
        "langfuse/langfuse#16292",
    ),
    "storage, secrets, exports": (
        "BerriAI/litellm#34887",
        "BerriAI/litellm#34479",
        "BerriAI/litellm#30670",
        "BerriAI/litellm#18731",
        "BerriAI/litellm#31620",
        "BerriAI/litellm#32581",
        "BerriAI/litellm#13280",
    ),
}


@cache
def named() -> set[str]:
    """The words of the docstrings of all tests, without the marks behind them."""
    return {
        word.strip(":,.;")
        for path in TESTS.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        for word in (ast.get_docstring(node) or "").split()
    }


@pytest.mark.parametrize("section", SOURCES)
def test_each_report_has_a_test_that_names_it(section: str) -> None:
    assert [source for source in SOURCES[section] if source not in named()] == []
