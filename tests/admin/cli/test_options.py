"""Instants and directories as people write them."""

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from admin.cli.options import DataDir, directory, instant_of

NOW = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("now", NOW),
        ("24h", datetime(2026, 11, 30, 12, 0, tzinfo=UTC)),
        ("7d", datetime(2026, 11, 24, 12, 0, tzinfo=UTC)),
        ("2026-02-24", datetime(2026, 2, 24, tzinfo=UTC)),
        ("2026-02-24T09:00", datetime(2026, 2, 24, 9, 0, tzinfo=UTC)),
        ("2026-02-24T09:00+09:00", datetime(2026, 2, 24, 0, 0, tzinfo=UTC)),
        ("2026-02-24T09:00Z", datetime(2026, 2, 24, 9, 0, tzinfo=UTC)),
    ],
)
def test_an_instant_is_read_in_its_own_zone_and_in_utc_without_one(text: str, instant: datetime) -> None:
    read = instant_of(text, NOW)
    assert read == instant
    assert read.utcoffset() == timedelta(0)


@pytest.mark.parametrize("text", ["", "yesterday", "24", "h", "-3d", "2026-13-01", "24 h"])
def test_what_is_no_instant_is_refused_with_examples(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="2026-12-01"):
        instant_of(text, NOW)


@given(
    at=st.datetimes(min_value=datetime(2000, 1, 1), max_value=datetime(2100, 1, 1)),  # noqa: DTZ001 -- zoned below
    offset_min=st.integers(-14 * 60, 14 * 60),
)
def test_an_offset_is_converted_never_dropped(at: datetime, offset_min: int) -> None:
    zoned = at.replace(tzinfo=timezone(timedelta(minutes=offset_min)))
    assert instant_of(zoned.isoformat(), NOW) == zoned


@pytest.mark.parametrize(
    ("words", "environment", "expected"),
    [
        ([], {}, ".kvitto"),
        ([], {"KVITTO_DATA_DIR": "from-environment"}, "from-environment"),
        (["--data-dir", "root"], {"KVITTO_DATA_DIR": "from-environment"}, "root"),
        (["--data-dir", "root", "show", "--data-dir", "own"], {"KVITTO_DATA_DIR": "from-environment"}, "own"),
    ],
)
def test_the_nearest_data_dir_wins(
    words: list[str],
    environment: dict[str, str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KVITTO_DATA_DIR", raising=False)
    probe = typer.Typer()
    chosen: list[Path] = []

    @probe.callback()
    def root(context: typer.Context, data_dir: Path | None = None) -> None:
        context.obj = data_dir

    @probe.command()
    def show(data_dir: DataDir = None) -> None:
        chosen.append(directory(data_dir))

    ran = CliRunner().invoke(probe, words if "show" in words else [*words, "show"], env=environment)
    assert ran.exit_code == 0, ran.output
    assert chosen == [tmp_path / expected]
