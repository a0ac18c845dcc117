"""`kvitto export` and `kvitto exports`: files on a real database, whole or not at all."""

import asyncio
import csv
import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from admin.settings import Settings
from billing.db.transaction import Database
from billing.reports.export.files.service import ExportFiles
from billing.usage import TokenUsage
from tests.admin.cli.test_usage import DAY, customer, settle

__all__ = ["customer"]

DAY_OF = ("--since", "2026-11-24", "--until", "2026-11-25")
USAGE = TokenUsage(cache_hit=1_024, cache_owed=64, cache_write=0, cache_miss=112, output=7)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def request_id(customer: Any, cli_settings: Settings) -> str:
    return settle(cli_settings, customer, USAGE, DAY)


def test_a_file_is_named_by_what_is_in_it_and_told_whole(
    kvitto: Any, customer: Any, request_id: str, here: Path
) -> None:
    """BerriAI/litellm#22176: noon of the 24th is there, in a file of that day alone."""
    told = kvitto("export", "--tenant", customer["tenant"], *DAY_OF, "--json").told
    path = here / "kvitto_requests_2026-11-24_2026-11-25_UTC.csv"
    content = path.read_bytes()
    assert told == {
        "file": str(path),
        "rows": 1,
        "size_bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    assert path.stat().st_mode & 0o777 == 0o600
    (row,) = csv.DictReader(io.StringIO(content.decode(), newline=""))
    assert (row["request_id"], row["charge"], row["currency"]) == (request_id, "0.000032872", "USD")
    assert row["rated_at[UTC]"] == "2026-11-24T12:00:00+00:00"
    assert [each.name for each in here.iterdir()] == [path.name]


def test_stdout_takes_the_rows_and_stderr_the_rest(kvitto: Any, customer: Any, request_id: str) -> None:
    ran = kvitto(
        "export", "-", "--content", "totals", "--by", "tenant,day", "--format", "jsonl", "--zone",
        "Asia/Kolkata", "--tenant", customer["tenant"], *DAY_OF,
    )  # fmt: skip
    (row,) = map(json.loads, ran.out.splitlines())
    assert (row["tenant"], row["day"]) == (customer["tenant"], "2026-11-24T00:00:00+05:30")
    assert (row["charge"], row["cache_owed"]) == ("0.000032872", 64)
    assert ran.err == "1 rows.\n"


def test_filters_and_focus_reach_the_file(kvitto: Any, customer: Any, request_id: str, here: Path) -> None:
    words = ("export", "f.csv", "--content", "focus", "--tenant", customer["tenant"], *DAY_OF, "--json")
    assert kvitto(*words).told["rows"] == 4
    assert kvitto(*words, "--status", "aborted").told["rows"] == 0
    assert kvitto(*words, "--key", customer["id"], "--class", "chat", "--tier", "standard").told["rows"] == 4
    assert kvitto(*words, "--key", "key_other").told["rows"] == 0
    assert (here / "f.csv").read_text().startswith("AvailabilityZone,BilledCost,")


def test_what_means_nothing_is_one_line_and_leaves_no_file(kvitto: Any, customer: Any, here: Path) -> None:
    for words, said in (
        (("--since", "2026-11-25", "--until", "2026-11-24"), "is before"),
        (("--zone", "Mars/Olympus"), "no time zone 'Mars/Olympus'"),
        (("--content", "totals", "--by", "colour"), "'colour' is not one of tenant, project"),
        (("--by", "model"), "requests are not added up"),
        (("--format", "xlsx"), "'xlsx' is not one of csv, jsonl, parquet"),
        (("--status", "lost"), "'lost' is not one of"),
        (("--tenant", "nobody"), "no tenant 'nobody'"),
        (("no/such/folder.csv",), "cannot write no/such/folder.csv"),
    ):
        ran = kvitto("export", *words)
        assert ran.status == 1
        assert said in ran.err
        assert ran.err.count("\n") == 1
    assert list(here.iterdir()) == []


def test_a_background_export_waits_is_made_and_is_taken_back(
    kvitto: Any, customer: Any, request_id: str, cli_settings: Settings
) -> None:
    (asked,) = kvitto("export", "--background", "--tenant", customer["tenant"], *DAY_OF, "--json").told
    assert (asked["status"], asked["file"]) == ("waiting", None)

    async def make() -> None:
        database = Database(cli_settings.database_url, pool_size=2)
        await ExportFiles(database, cli_settings.exports_folder).make(asked["id"])
        await database.close()

    asyncio.run(make())
    (done,) = [each for each in kvitto("exports", "--json").told if each["id"] == asked["id"]]
    assert (done["status"], done["rows"]) == ("done", 1)
    assert hashlib.sha256(Path(done["file"]).read_bytes()).hexdigest() == done["sha256"]
    (deleted,) = kvitto("exports", "--delete", asked["id"], "--json").told
    assert deleted["status"] == "deleted"
    assert not Path(done["file"]).exists()
    assert "kvitto exports" in kvitto("exports", "--delete", asked["id"]).err
    assert kvitto("export", "x.csv", "--background").status == 2
