"""`kvitto status`, `logs`, `down` on directories where nothing runs, and on one whose state a test wrote."""

from pathlib import Path
from typing import Any

import pytest

from admin.cli.stack import _kept
from admin.stack.state import Layout


@pytest.mark.parametrize(
    "words",
    [("usage",), ("tenant", "list"), ("key", "list"), ("price", "list"), ("credit", "grant", "demo", "1")],
)
def test_the_books_of_a_stack_that_is_down_say_so(
    kvitto: Any, cli_settings: Any, words: tuple[str, ...]
) -> None:
    Layout(cli_settings.data_dir).state.unlink()
    ran = kvitto(*words)
    assert (ran.status, ran.out) == (1, "")
    assert ran.err == f"kvitto: no stack runs in {cli_settings.data_dir}: `kvitto up` starts it\n"


def test_status_of_nothing_is_status_1_for_people_and_machines(kvitto: Any, cli_settings: Any) -> None:
    Layout(cli_settings.data_dir).state.unlink()
    ran = kvitto("status")
    assert ran.status == 1
    assert "`kvitto up` starts it" in ran.out.replace("\n", " ")
    told = kvitto("status", "--json")
    assert told.status == 1
    assert '"ready": false' in told.out
    assert '"parts": []' in told.out


def test_down_of_nothing_is_done_already(kvitto: Any, cli_settings: Any) -> None:
    Layout(cli_settings.data_dir).state.unlink()
    ran = kvitto("down")
    assert (ran.status, ran.out) == (0, f"Nothing was running in {cli_settings.data_dir}.\n")


def test_logs_of_one_part_or_of_all(kvitto: Any, cli_settings: Any) -> None:
    logs: Path = Layout(cli_settings.data_dir).logs
    (logs / "gateway.log").write_text("served\n")
    (logs / "jobs.log").write_text("swept\n")
    assert kvitto("logs", "gateway").out == "served\n"
    assert kvitto("logs").out == "gateway | served\njobs    | swept\n"
    ran = kvitto("logs", "mail")
    assert ran.status == 1
    assert "gateway, jobs" in ran.err


def test_drafts_are_told_as_the_part_that_was_kept() -> None:
    assert [_kept(*drafts) for drafts in ((None, None), (0, 0), (8, 6), (1000, 3))] == [
        None,
        None,
        "75 %",
        "0 %",
    ]
