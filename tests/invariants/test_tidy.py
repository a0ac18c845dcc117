"""House style that a machine can hold (conventions: Shape, C1, C4, C8, C14)."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("admin", "billing", "engine", "gateway", "recipe")
FOLDERS = {*PACKAGES, "migrations", "docker", "tests", ".ci"}

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
PARAMETERS_MAX = 6

VAGUE_NAMES = {"data", "info", "utils", "util", "helper", "helpers", "manager", "misc", "common"}

# What may be written in one place alone: pattern, where it may be, where it is looked for.
ONE_PLACE = (
    (r"\bdatetime\.now\(|\bdatetime\.utcnow\(", {"admin/clock.py"}, PACKAGES),
    (r"\btime\.time(_ns)?\(", {"admin/clock.py", "engine/worker/clock.py"}, PACKAGES),
    (r"\bos\.environ\b|\bos\.getenv\b|\bgetenv\(", {"admin/settings.py"}, PACKAGES),
    (r"\.commit\(", {"billing/db/transaction.py"}, PACKAGES),
    (r"^\s*(import|from) redis\b", {"gateway/valkey.py"}, PACKAGES),
    (r"\bfloat\b", set(), ("billing",)),
)
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK|NotImplementedError)\b")
BARE_IGNORE = re.compile(r"#\s*(noqa(:\s*[A-Z0-9, ]+)?|type:\s*ignore(\[[\w, -]+\])?)\s*$")
FAKE_TESTS = re.compile(r"\bmock\.patch\b|\bpytest\.skip\b|\bxfail\b|\btime\.sleep\b|\bMagicMock\b")


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    return [path for name in listed if name and (path := ROOT / name).is_file()]


def python_files() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".py"]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def code_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines of code with comments cut off; docstrings may say what they like about `float`."""
    text = path.read_text(encoding="utf-8")
    prose = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    for number, line in enumerate(text.splitlines(), 1):
        if number not in prose:
            yield number, line.split("  # ")[0]


def test_every_top_level_folder_is_one_of_the_house() -> None:
    strangers = {parts[0] for path in tracked() if len(parts := path.relative_to(ROOT).parts) > 1} - FOLDERS
    assert not strangers


def test_no_file_is_longer_than_its_one_noun() -> None:
    assert not [
        name_of(p) for p in python_files() if len(p.read_text(encoding="utf-8").splitlines()) > FILE_LINES_MAX
    ]


def test_every_function_fits_a_screen() -> None:
    long = [
        f"{name_of(path)}:{node.lineno} {node.name}"
        for path in python_files()
        for node in functions(path)
        if (node.end_lineno or node.lineno) - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert not long


def test_no_function_of_ours_takes_more_than_six_parameters() -> None:
    """Command line functions are exempt: each of their parameters is an option a person types."""
    crowded = [
        f"{name_of(path)}:{node.lineno} {node.name}"
        for path in python_files()
        if not name_of(path).startswith("admin/cli/")
        for node in functions(path)
        if len([a for a in (*node.args.args, *node.args.kwonlyargs) if a.arg not in {"self", "cls"}])
        > PARAMETERS_MAX
    ]
    assert not crowded


def test_no_module_has_a_vague_name() -> None:
    assert not [name_of(path) for path in python_files() if path.stem in VAGUE_NAMES]


@pytest.mark.parametrize(("pattern", "places", "packages"), ONE_PLACE, ids=[rule[0] for rule in ONE_PLACE])
def test_what_has_one_place_is_written_there_alone(
    pattern: str, places: set[str], packages: tuple[str, ...]
) -> None:
    elsewhere = [
        f"{name}:{number}"
        for path in python_files()
        if (name := name_of(path)).split("/")[0] in packages and name not in places
        for number, line in code_lines(path)
        if re.search(pattern, line)
    ]
    assert not elsewhere


def test_mains_are_the_roots_of_processes() -> None:
    mains_of_tests = ("tests/bench/", "tests/chaos/", "tests/scenarios/")
    roots = ("admin/run/", "admin/cli/main.py", "engine/worker/", *mains_of_tests)
    mains = [
        name
        for path in python_files()
        if "__main__" in path.read_text(encoding="utf-8")
        and (name := name_of(path)) != name_of(Path(__file__))
        and not name.startswith(roots)
    ]
    assert not mains


def test_nothing_is_left_unfinished_and_no_test_is_a_fake() -> None:
    own = name_of(Path(__file__))
    smells = [
        f"{name}:{number}"
        for path in python_files()
        if (name := name_of(path)) != own
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if UNFINISHED.search(line) or FAKE_TESTS.search(line)
    ]
    assert not smells


def test_every_ignore_of_a_rule_carries_its_reason() -> None:
    bare = [
        f"{name_of(path)}:{number}"
        for path in python_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if BARE_IGNORE.search(line)
    ]
    assert not bare


def test_the_documents_keep_their_size() -> None:
    assert len((ROOT / "Makefile").read_text().splitlines()) <= 70
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= 120
