"""Engine options out of a stack's settings: the gateway and the jobs reach the same workers the same way."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from admin.engine import engine_options
from admin.settings import Settings, WorkerSettings
from engine.mac import MAC_HEADER, holds
from tests.deployment import RING

SECRET = bytes(range(32))


def settings_of(folder: Path) -> Settings:
    return Settings(
        data_dir=folder,
        database_url="",
        valkey_url="",
        host="127.0.0.1",
        port=1,
        model_dir=None,
        served_name="m",
        workers=(WorkerSettings("mono-1", "both", folder / "w.sock", folder / "w.certificate"),),
        key_pepper=bytes(32),
        salt_secret=bytes(32),
        worker_secret=SECRET,
        deployment_ring=RING,
        store_dir=folder / "store",
        first_token=False,
    )


class Scripts:
    async def run_source(self, *_: Any) -> None:
        """Nothing is run here."""


def test_what_the_shape_says_reaches_the_engine(tmp_path: Path) -> None:
    known = settings_of(tmp_path)
    options = engine_options(known)
    (worker,) = options.workers
    assert (worker.name, worker.role, worker.socket) == ("mono-1", "both", tmp_path / "w.sock")
    assert (options.store_dir, options.first_token, options.shared) == (tmp_path / "store", False, None)
    assert engine_options(replace(known, store_dir=None)).store_dir is None


def test_calls_carry_the_mac_that_workers_ask_for(tmp_path: Path) -> None:
    options = engine_options(settings_of(tmp_path))
    assert options.now_s is not None
    headers = options.call_headers("GET", "/kvitto/report", b"")
    assert holds(SECRET, headers[MAC_HEADER], "GET", "/kvitto/report", b"", options.now_s())


def test_processes_meet_under_different_names(tmp_path: Path) -> None:
    scripts = Scripts()
    one, other = (engine_options(settings_of(tmp_path), shared=scripts) for _ in range(2))
    assert one.shared is other.shared is scripts
    assert one.gateway != other.gateway
