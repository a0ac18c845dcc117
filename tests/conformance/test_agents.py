"""Coding agents from npm complete a turn of text, and a loop with a tool, on the gateway."""

from pathlib import Path

import pytest

from tests.conformance.agents import AGENTS, INSTALLED, MISSING, Agent
from tests.conformance.client import At
from tests.conformance.stack import Stack

SAID = "All is well in this folder."
QUESTION = "What does the file here say?"
FILE, CONTENT = "note.txt", "forty-two herons"

pytestmark = [
    pytest.mark.skipif(not INSTALLED.is_dir(), reason=MISSING),
    pytest.mark.parametrize("agent", AGENTS, ids=[agent.name for agent in AGENTS]),
]


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A home for the agent, and a folder to work in that holds a file."""
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    (work / FILE).write_text(CONTENT + "\n")
    return home, work


def at(stack: Stack) -> At:
    return At(stack.house.url, stack.house.key, stack.model)


async def test_it_completes_a_turn_of_text(agent: Agent, stack: Stack, folders: tuple[Path, Path]) -> None:
    stack.source.script = lambda _: stack.dialect.says(SAID)
    assert SAID in await agent.ask(at(stack), QUESTION, *folders)
    assert {exchange.status for exchange in stack.asked} == {200}
    assert any(exchange.path.endswith(agent.surface) for exchange in stack.asked)


async def test_it_completes_a_loop_with_a_tool(
    agent: Agent, stack: Stack, folders: tuple[Path, Path]
) -> None:
    """What the file says is in no prompt until the tool that reads it has run."""
    call = stack.dialect.calls(agent.shell, **agent.arguments(f"cat {FILE}"))

    def script(prompt: str) -> str:
        if CONTENT in prompt or agent.shell not in prompt:
            return stack.dialect.says(SAID)
        return call

    stack.source.script = script
    assert SAID in await agent.ask(at(stack), QUESTION, *folders)
    assert any(CONTENT in prompt for prompt in stack.source.prompts)
    assert {exchange.status for exchange in stack.asked} == {200}
