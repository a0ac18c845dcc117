"""The set-up: what `make up` and `make test` install, they install once."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def made(*words: str) -> str:
    """What `make` prints, asked by a person: not by the `make test` that may run this."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))
    }
    command = ["make", *words]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    ).stdout


def planned(target: str, *more: str) -> str:
    """The commands that `make TARGET` would run now."""
    return made("--dry-run", *more, target)


@pytest.mark.parametrize("target", ["up", "test"])
def test_a_second_call_installs_nothing(target: str) -> None:
    assert "pip install" not in planned(target)


@pytest.mark.parametrize("target", ["up", "test"])
def test_a_changed_dependency_is_installed_first(target: str) -> None:
    lines = planned(target, "--what-if", "pyproject.toml").splitlines()
    installs = [number for number, line in enumerate(lines) if "pip install" in line]
    assert installs
    assert max(installs) < len(lines) - 1


def test_help_names_every_target_a_person_types() -> None:
    assert {line.split()[0] for line in made("help").splitlines()} == {
        "help",
        "up",
        "down",
        "test",
        "lint",
        "fmt",
        "bench",
        "chaos",
        "conformance",
        "fuzz",
    }
