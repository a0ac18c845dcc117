"""What people see while a stack starts."""

import io
import json
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from admin.stack.progress import Progress
from admin.stack.state import PartStatus, StackStatus


def shown(statuses: list[StackStatus], terminal: bool) -> str:
    output = io.StringIO()
    progress = Progress(Console(file=output, force_terminal=terminal, width=200))
    for status in statuses:
        progress(status)
    return output.getvalue()


def start_of(tmp_path: Path) -> list[StackStatus]:
    (tmp_path / "credentials.json").write_text(json.dumps({"api_key": "kv_live_shown"}))
    parts = (PartStatus("postgres", "starting"), PartStatus("gateway"))
    begun = StackStatus(tmp_path, "starting", base_url="http://127.0.0.1:9/v1", served_name="m", parts=parts)
    served = tuple(replace(part, state="ready") for part in parts)
    return [begun, begun, replace(begun, phase="ready", parts=served)]


def test_without_a_terminal_each_change_is_one_line(tmp_path: Path) -> None:
    text = shown(start_of(tmp_path), terminal=False)
    assert text.count("postgres starting") == 1
    assert text.count("postgres ready") == 1
    assert "gateway waiting" not in text


def test_a_ready_stack_says_how_to_reach_it_once(tmp_path: Path) -> None:
    statuses = start_of(tmp_path)
    text = shown([*statuses, statuses[-1]], terminal=False)
    assert text.count("curl http://127.0.0.1:9/v1/chat/completions") == 1
    assert "kv_live_shown" in text
    assert '"model": "m"' in text


def test_on_a_terminal_the_end_of_the_display_stays(tmp_path: Path) -> None:
    text = shown(start_of(tmp_path), terminal=True)
    assert "postgres" in text
    assert "Ready after" in text


def test_a_restart_later_is_told_with_its_reason(tmp_path: Path) -> None:
    statuses = start_of(tmp_path)
    broken = replace(statuses[-1].parts[0], state="restarting", detail="was ended by SIGKILL")
    later = replace(statuses[-1], parts=(broken, statuses[-1].parts[1]))
    assert "postgres restarting was ended by SIGKILL" in shown([*statuses, later], terminal=False)
