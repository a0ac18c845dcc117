"""What people see while a stack starts and stops: live on a terminal, a line per change elsewhere."""

import time
from typing import Final

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from admin.stack.state import Layout, PartStatus, StackStatus

MARKS: Final = {
    "waiting": ("·", "dim"),
    "ready": ("✓", "green"),
    "stopped": ("·", "dim"),
    "failed": ("✗", "red"),
    "restarting": ("!", "yellow"),
}


class Progress:
    """Callable for ``supervisor.up``: shows each status, then once how to reach what is ready."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._live: Live | None = None
        self._begun_s = time.monotonic()
        self._shown: dict[str, tuple[str, str]] = {}
        self._phase = ""
        self._spinner = Spinner("dots")

    def __call__(self, status: StackStatus) -> None:
        """Show one status."""
        entered, self._phase = status.phase != self._phase, status.phase
        if self._console.is_terminal and status.phase in ("starting", "stopping"):
            self._show_live(status)
        else:
            self._end_live(status)
            self._show_lines(status)
        if entered and status.phase == "ready":
            self._console.print(_ready_text(status, time.monotonic() - self._begun_s), soft_wrap=True)

    def _show_live(self, status: StackStatus) -> None:
        if self._live is None:
            # Refreshed by our caller's ticks: a thread of rich's own would run beside our forks.
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(self._table(status), refresh=True)
        self._remember(status)

    def _end_live(self, status: StackStatus) -> None:
        if self._live is None:
            return
        self._live.update(self._table(status), refresh=True)
        self._live.stop()
        self._live = None
        if status.phase == "ready":
            self._console.print(self._table(status))
        self._remember(status)

    def _show_lines(self, status: StackStatus) -> None:
        for row in (*status.steps, *status.parts):
            state = _told(row)
            if self._shown.get(row.name) != state and row.state != "waiting":
                mark, style = MARKS.get(row.state, ("…", "cyan"))
                line = Text.assemble(
                    (mark, style), f" {row.name} {row.state}", (f" {state[1]}".rstrip(), "dim")
                )
                self._console.print(line)
        self._remember(status)

    def _remember(self, status: StackStatus) -> None:
        for row in (*status.steps, *status.parts):
            self._shown[row.name] = _told(row)

    def _table(self, status: StackStatus) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for row in (*status.steps, *status.parts):
            table.add_row(
                self._mark(row), row.name, Text(row.state, style="dim"), Text(_shortened(row), style="dim")
            )
        if status.phase == "ready":
            return table
        elapsed = Text(f"{status.phase} · {time.monotonic() - self._begun_s:.0f} s", style="dim")
        return Group(table, elapsed)

    def _mark(self, row: PartStatus) -> RenderableType:
        if row.state in MARKS:
            mark, style = MARKS[row.state]
            return Text(mark, style=style)
        return self._spinner


def _told(row: PartStatus) -> tuple[str, str]:
    """What is worth a line of its own: the state, and its details unless they change all the time."""
    return row.state, row.detail if row.state in ("restarting", "failed", "ready") else ""


def _shortened(row: PartStatus) -> str:
    text = row.detail or (row.address or "" if row.state == "ready" else "")
    return text if len(text) <= 72 else f"…{text[-71:]}"


def _ready_text(status: StackStatus, elapsed_s: float) -> Text:
    credentials = Layout(status.data_dir).credentials
    key = (
        msgspec.json.decode(credentials.read_bytes())["api_key"]
        if credentials.exists()
        else "$KVITTO_API_KEY"
    )
    question = '[{"role": "user", "content": "What is the capital of France?"}]'
    body = f'{{"model": "{status.served_name}", "messages": {question}}}'
    return Text.assemble(
        (f"\nReady after {elapsed_s:.0f} s\n\n", "bold green"),
        ("  API      ", "dim"), f"{status.base_url}\n",
        ("  Console  ", "dim"), "comes with a later version\n",
        ("  Key      ", "dim"), f"{key}  (all in {credentials})\n\n",
        f"curl {status.base_url}/chat/completions -H 'Authorization: Bearer {key}' -d '{body}'\n",
    )  # fmt: skip
