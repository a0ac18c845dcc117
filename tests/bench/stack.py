"""A stack of its own, driven by the `kvitto` command as a person would, and a client of its API."""

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from admin.cli.stream import Endpoint, complete, model_of

ANSWER_TOKENS = 8


class CommandBroke(Exception):
    """A command of `kvitto` ended with another status than 0."""


@dataclass(frozen=True, slots=True)
class Told:
    """One answer: seconds from sending the question to the first piece of text, and its tokens."""

    first_token_s: float
    prompt_tokens: int
    hit_tokens: int


@dataclass(frozen=True, slots=True)
class Stack:
    """One data directory and the port its API gets."""

    data_dir: Path
    port: int

    @classmethod
    def fresh(cls, data_dir: Path) -> "Stack":
        """A stack that has never run, on a port that is free now."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return cls(data_dir, probe.getsockname()[1])

    def up(self) -> float:
        """Start it and return how long the command took, in seconds: it returns when everything is ready."""
        started = time.perf_counter()
        self.kvitto("up", "--detach", "--port", str(self.port))
        return time.perf_counter() - started

    def down(self) -> None:
        """Stop it; does nothing when nothing runs."""
        self.kvitto("down")

    async def chat(self, prompt: str) -> Told:
        """Ask greedily for a few tokens, streamed over HTTP with the demo key."""
        written = json.loads((self.data_dir / "credentials.json").read_bytes())
        endpoint = Endpoint(written["base_url"], written["api_key"])
        body = {
            "model": await model_of(endpoint),
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": ANSWER_TOKENS,
            "temperature": 0,
        }
        answer = await complete(endpoint, body, lambda _: None)
        assert answer.first_token_s is not None, "an answer without text has no first token"
        usage = answer.usage
        return Told(answer.first_token_s, usage["prompt_tokens"], usage["prompt_cache_hit_tokens"])

    def status(self) -> dict[str, Any]:
        """Return what `kvitto status --json` prints."""
        found: dict[str, Any] = json.loads(self.kvitto("status", "--json"))
        return found

    def kvitto(self, command: str, *arguments: str) -> str:
        """Run one command and return what it printed.

        Raises:
            CommandBroke: its status was not 0.
        """
        argv = [sys.executable, "-m", "admin.cli.main", command, "--data-dir", str(self.data_dir), *arguments]
        # A file, not a pipe: a detached stack must not keep our reading end open.
        output = self.data_dir.parent / "stdout"
        with output.open("w+b") as written:
            ended = subprocess.run(argv, stdout=written, stdin=subprocess.DEVNULL, check=False)
        if ended.returncode:
            raise CommandBroke(f"kvitto {command} ended with status {ended.returncode}")
        return output.read_text()


@contextlib.contextmanager
def own_stack() -> Iterator[Stack]:
    """A stack that has never run, in a temporary folder; stopped and gone afterwards."""
    place = Path(tempfile.mkdtemp(prefix="kv-bench-", dir="/tmp"))  # sockets need a short path
    place.chmod(0o711)  # as root, Postgres's own account has to pass through
    stack = Stack.fresh(place / "d")
    try:
        yield stack
    finally:
        stack.down()
        shutil.rmtree(place, ignore_errors=True)
