"""A stack of its own, driven by the `kvitto` command as a person would."""

import json
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ANSWER_TOKENS = 8


class CommandBroke(Exception):
    """A command of `kvitto` ended with another status than 0."""


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

    def chat(self, prompt: str) -> dict[str, Any]:
        """Ask greedily for a few tokens; returns what `kvitto chat --json` prints."""
        options = ("--max-tokens", str(ANSWER_TOKENS), "--temperature", "0", "--json")
        answer: dict[str, Any] = json.loads(self.kvitto("chat", prompt, *options))
        return answer

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
