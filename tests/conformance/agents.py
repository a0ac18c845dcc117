"""Coding agents from npm, told to work alone: how they find the gateway, and how they are asked."""

import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conformance.client import At

INSTALLED = Path(__file__).parent / "agents" / "node_modules"
MISSING = "only `make conformance` installs the agents"
DEADLINE_S = 90
# Nothing but the gateway is reached: whatever asks elsewhere finds a closed door.
CLOSED = "http://127.0.0.1:9"


@dataclass(frozen=True)
class Agent:
    """One agent; ``shell`` is the tool that runs a command, ``takes`` its argument for it."""

    name: str
    shell: str
    takes: str
    surface: str

    def command(self, at: At, prompt: str) -> list[str]:
        """What to run, behind the path of the program."""
        raise AssertionError(self.name)

    def environment(self, at: At) -> dict[str, str]:
        """What it reads besides."""
        return {}

    def prepare(self, home: Path, at: At) -> None:
        """Write the files it reads."""

    def arguments(self, command: str) -> dict[str, Any]:
        """Of a call that runs a command."""
        return {self.takes: command}

    async def ask(self, at: At, prompt: str, home: Path, work: Path) -> str:
        """Run it in ``work`` to its end; what it wrote to its outputs."""
        self.prepare(home, at)
        child = await asyncio.create_subprocess_exec(
            str(INSTALLED / ".bin" / self.name),
            *self.command(at, prompt),
            cwd=work,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(home),
                "TERM": "dumb",
                "HTTP_PROXY": CLOSED,
                "HTTPS_PROXY": CLOSED,
                "NO_PROXY": "127.0.0.1",
                **self.environment(at),
            },
        )
        try:
            async with asyncio.timeout(DEADLINE_S):
                out, _ = await child.communicate()
        finally:
            if child.returncode is None:
                child.kill()
        text = out.decode("utf-8", "replace")
        assert child.returncode == 0, text
        return text


@dataclass(frozen=True)
class Codex(Agent):
    """OpenAI's Codex, over responses."""

    name: str = "codex"
    shell: str = "exec_command"
    takes: str = "cmd"
    surface: str = "/responses"

    def command(self, at: At, prompt: str) -> list[str]:
        """See `Agent`."""
        provider = {
            "name": '"kvitto"',
            "base_url": f'"{at.url}/v1"',
            "wire_api": '"responses"',
            "env_key": '"KVITTO_KEY"',
        }
        settings = {
            "model_provider": '"kvitto"',
            **{f"model_providers.kvitto.{key}": value for key, value in provider.items()},
        }
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        free = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        return ["exec", *free, *options, "-m", at.model, prompt]

    def environment(self, at: At) -> dict[str, str]:
        """See `Agent`."""
        return {"KVITTO_KEY": at.key}


@dataclass(frozen=True)
class ClaudeCode(Agent):
    """Anthropic's Claude Code, over messages."""

    name: str = "claude"
    shell: str = "Bash"
    takes: str = "command"
    surface: str = "/messages"

    def command(self, at: At, prompt: str) -> list[str]:
        """See `Agent`."""
        return ["-p", prompt, "--allowedTools", "Bash", "--model", at.model]

    def environment(self, at: At) -> dict[str, str]:
        """See `Agent`."""
        return {
            "ANTHROPIC_BASE_URL": at.url,
            "ANTHROPIC_AUTH_TOKEN": at.key,
            "ANTHROPIC_SMALL_FAST_MODEL": at.model,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }

    def arguments(self, command: str) -> dict[str, Any]:
        """See `Agent`."""
        return {"command": command, "description": "Read the file"}


@dataclass(frozen=True)
class OpenCode(Agent):
    """opencode, over chat completions."""

    name: str = "opencode"
    shell: str = "bash"
    takes: str = "command"
    surface: str = "/chat/completions"

    def command(self, at: At, prompt: str) -> list[str]:
        """See `Agent`."""
        return ["run", "-m", f"kvitto/{at.model}", prompt]

    def environment(self, at: At) -> dict[str, str]:
        """See `Agent`."""
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Kvitto",
            "options": {"baseURL": f"{at.url}/v1", "apiKey": at.key},
            "models": {at.model: {"name": at.model, "limit": {"context": 200_000, "output": 8192}}},
        }
        settings = {
            "provider": {"kvitto": provider},
            "small_model": f"kvitto/{at.model}",
            "permission": {"bash": "allow"},
            "autoupdate": False,
            "share": "disabled",
        }
        return {"OPENCODE_CONFIG_CONTENT": json.dumps(settings), "OPENCODE_DISABLE_MODELS_FETCH": "1"}

    def arguments(self, command: str) -> dict[str, Any]:
        """See `Agent`."""
        return {"command": command, "description": "Read the file"}


@dataclass(frozen=True)
class QwenCode(Agent):
    """Qwen Code, over chat completions."""

    name: str = "qwen"
    shell: str = "run_shell_command"
    takes: str = "command"
    surface: str = "/chat/completions"

    def command(self, at: At, prompt: str) -> list[str]:
        """See `Agent`."""
        return ["-p", prompt, "--yolo", "--auth-type", "openai", "-m", at.model]

    def environment(self, at: At) -> dict[str, str]:
        """See `Agent`."""
        return {"OPENAI_API_KEY": at.key, "OPENAI_BASE_URL": f"{at.url}/v1", "OPENAI_MODEL": at.model}

    def arguments(self, command: str) -> dict[str, Any]:
        """See `Agent`."""
        return {"command": command, "is_background": False}


AGENTS = (Codex(), ClaudeCode(), OpenCode(), QwenCode())
