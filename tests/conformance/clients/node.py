"""Packages for Node: a script each, told a case as JSON on stdin, telling on stdout what it made of it."""

import asyncio
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.conformance.client import (
    CITY_SCHEMA,
    TOOL,
    TOOL_ABOUT,
    TOOL_SCHEMA,
    WEATHER,
    At,
    City,
    Client,
    Refused,
    Said,
)

SCRIPTS = Path(__file__).parents[1] / "node"
DEADLINE_S = 60
MISSING = "npm has not installed tests/conformance/node: `make test` does, where there is npm"


def installed() -> bool:
    """Whether these clients can run here."""
    return shutil.which("node") is not None and (SCRIPTS / "node_modules").is_dir()


@dataclass(frozen=True)
class NodeClient(Client):
    """A package, by the script that drives it."""

    script: str = ""

    async def _run(self, case: str, at: At, text: str) -> Any:
        spec = {
            **asdict(at),
            "case": case,
            "text": text,
            "tool": {"name": TOOL, "description": TOOL_ABOUT, "schema": TOOL_SCHEMA, "says": WEATHER},
            "city": CITY_SCHEMA,
        }
        child = await asyncio.create_subprocess_exec(
            "node",
            str(SCRIPTS / self.script),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"PATH": os.environ["PATH"], "AI_SDK_LOG_WARNINGS": "false"},
        )
        try:
            async with asyncio.timeout(DEADLINE_S):
                out, err = await child.communicate(json.dumps(spec).encode())
        finally:
            if child.returncode is None:
                child.kill()
        assert child.returncode == 0, err.decode()
        told = json.loads(out)
        if "refused" in told:
            raise Refused(told["refused"]["status"], told["refused"]["message"])
        return told["said"]

    async def plain(self, at: At, text: str) -> Said:
        """See `Client`."""
        return Said(**await self._run("plain", at, text))

    async def stream(self, at: At, text: str) -> Said:
        """See `Client`."""
        return Said(**await self._run("stream", at, text))

    async def tools(self, at: At, text: str) -> str:
        """See `Client`."""
        return str(await self._run("tools", at, text))

    async def tools_stream(self, at: At, text: str) -> str:
        """See `Client`."""
        return str(await self._run("tools_stream", at, text))

    async def schema(self, at: At, text: str) -> City:
        """See `Client`."""
        return City(**await self._run("schema", at, text))

    async def forced_tool(self, at: At, text: str) -> City:
        """See `Client`."""
        return City(**await self._run("forced_tool", at, text))

    async def count(self, at: At, text: str) -> int:
        """See `Client`."""
        return int(await self._run("count", at, text))


BOTH = frozenset({"plain", "stream", "errors", "tools", "tools_stream", "schema"})
CLIENTS = (
    NodeClient(
        "openai-node",
        "/chat/completions",
        BOTH | {"forced_tool", "thinking"},
        "City",
        script="openai_chat.mjs",
    ),
    NodeClient("openai-node-responses", "/responses", BOTH | {"thinking"}, script="openai_responses.mjs"),
    NodeClient(
        "anthropic-node",
        "/messages",
        BOTH | {"forced_tool", "thinking", "count"},
        "City",
        script="anthropic.mjs",
    ),
    NodeClient("aisdk-deepseek", "/chat/completions", BOTH | {"thinking"}, script="aisdk_deepseek.mjs"),
    NodeClient(
        "aisdk-openai-compatible", "/chat/completions", BOTH | {"thinking"}, script="aisdk_compatible.mjs"
    ),
)
