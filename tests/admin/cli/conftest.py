"""The command line in this process, on a data directory with the session's real Postgres and Valkey."""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from admin.cli.main import main
from admin.settings import Settings
from admin.stack.state import Layout, StackStatus, started_s
from billing.db.transaction import Database
from billing.pricing import toml
from billing.pricing.service import Prices
from tests.deployment import RING

PEPPER = bytes(32)


@dataclass(frozen=True)
class Ran:
    """What a command left: its exit status and what it wrote."""

    status: int
    out: str
    err: str

    @property
    def told(self) -> Any:
        assert self.status == 0, self.err
        return json.loads(self.out)


Kvitto = Callable[..., Ran]


@pytest.fixture
def cli_settings(tmp_path: Path, database_url: str, valkey_url: str) -> Settings:
    """Settings of a stack without engine, as `kvitto up` leaves them; this process plays supervisor."""
    layout = Layout(tmp_path / "state")
    layout.create()
    settings = Settings(
        data_dir=layout.data_dir,
        database_url=database_url,
        valkey_url=valkey_url,
        host="127.0.0.1",
        port=8080,
        model_dir=None,
        served_name="smollm2-135m-instruct",
        workers=(),
        key_pepper=PEPPER,
        salt_secret=bytes(32),
        worker_secret=bytes(32),
        deployment_ring=RING,
    )
    settings.write(layout.settings)
    StackStatus(
        data_dir=layout.data_dir,
        phase="ready",
        pid=os.getpid(),
        pid_started_s=started_s(psutil.Process()),
    ).write()
    return settings


@pytest.fixture
def kvitto(
    cli_settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Kvitto:
    """Runs `kvitto WORDS --data-dir …` in this process."""

    def run(*words: str) -> Ran:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["kvitto", *words, "--data-dir", str(cli_settings.data_dir)])
        with pytest.raises(SystemExit) as ended:
            main()
        wrote = capsys.readouterr()
        return Ran(int(ended.value.code or 0), wrote.out, wrote.err)

    return run


@pytest.fixture
def demo_prices(cli_settings: Settings) -> None:
    """The shipped demo price book, published: off-peak at half price, 16:30 to 00:30 UTC."""

    async def publish() -> None:
        database = Database(cli_settings.database_url, pool_size=1)
        try:
            await Prices(database).publish(
                toml.shipped("demo"), actor="test", at=datetime(2026, 11, 1, tzinfo=UTC)
            )
        finally:
            await database.close()

    asyncio.run(publish())
