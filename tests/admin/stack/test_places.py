"""Secrets, sockets, port, worker files, settings: what a stack keeps and takes."""

import asyncio
import os
import stat
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from admin import settings
from admin.settings import Settings, SettingsMissing
from admin.stack import journal, places, secrets, state, workers
from admin.stack.errors import PortTaken, SecretsBroken, StackRunning
from admin.stack.plans import Planner
from admin.stack.state import Layout, StackStatus
from engine.proof.certificate import WorkerCertificate
from engine.shapes.shape import Shape
from tests.deployment import RING, signer


def test_secrets_are_made_once_and_readable_by_this_user_alone(tmp_path: Path) -> None:
    first, second = secrets.load_or_create(tmp_path), secrets.load_or_create(tmp_path)
    assert (first.salt, first.pepper) == (second.salt, second.pepper)
    assert first.deployment.ring == second.deployment.ring
    assert first.call == second.call
    for file in (*(tmp_path / "secrets").iterdir(), tmp_path / "workers" / "call.secret"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_secrets_are_not_in_their_representation(tmp_path: Path) -> None:
    made = secrets.load_or_create(tmp_path)
    for secret in (
        made.salt.hex(),
        made.pepper.hex(),
        made.call.hex(),
        made.valkey_password,
        made.postgres.role,
    ):
        assert secret not in repr(made)


def test_a_missing_secret_is_an_error_not_a_new_secret(tmp_path: Path) -> None:
    secrets.load_or_create(tmp_path)
    (tmp_path / "secrets" / "pepper").unlink()
    with pytest.raises(SecretsBroken):
        secrets.load_or_create(tmp_path)


def test_a_secret_for_callers_is_made_where_there_was_none_and_a_broken_one_is_an_error(
    tmp_path: Path,
) -> None:
    secrets.load_or_create(tmp_path)
    file = tmp_path / "workers" / "call.secret"
    file.unlink()
    assert secrets.load_or_create(tmp_path).call == bytes.fromhex(file.read_text())
    for broken in ("ab" * 31, "no hexadecimal"):
        file.write_text(broken)
        with pytest.raises(SecretsBroken):
            secrets.load_or_create(tmp_path)


def test_a_database_whose_secrets_are_gone_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    with pytest.raises(SecretsBroken, match="backup"):
        secrets.load_or_create(tmp_path)


def test_the_folder_of_sockets_is_short_private_and_found_again(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.create()
    taken = places.take_sockets(layout)
    try:
        assert len(os.fsencode(taken)) < 40
        assert stat.S_IMODE(taken.stat().st_mode) & 0o066 == 0
        assert places.take_sockets(layout) == taken
        taken.chmod(0o777)  # somebody else's by now, for all we know
        other = places.take_sockets(layout)
        assert other != taken
        places.leave_sockets(layout)
        assert not other.exists()
        assert taken.exists()
    finally:
        taken.rmdir()


def test_a_port_in_use_says_what_to_do() -> None:
    with places.listen("127.0.0.1", 0) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(PortTaken, match="--port"):
            places.listen("127.0.0.1", port)


async def test_a_gateway_is_ready_when_it_answers_itself_not_when_another_does(short_folder: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        writer.close()

    folder = short_folder / "gateways"
    layout = Layout(folder)
    layout.create()
    planner = Planner(layout, secrets.load_or_create(folder), folder)
    with (
        places.listen("127.0.0.1", 0) as shared,
        places.listen_beside(shared, folder, ("gateway-1", "gateway-2")) as listeners,
    ):
        first, second = (planner.gateway(each.own.getsockname(), "", each, "/livez") for each in listeners)
        async with (
            await asyncio.start_server(answer, sock=shared.dup()),
            await asyncio.start_server(answer, sock=listeners[0].own.dup()),
        ):
            assert await first.ready(os.getpid())
            assert not await second.ready(os.getpid())
        assert stat.S_IMODE((folder / "g").stat().st_mode) == 0o700


def test_a_data_directory_is_held_by_one_supervisor(tmp_path: Path) -> None:
    Layout(tmp_path).create()
    with state.locked(tmp_path):
        assert state.is_locked(tmp_path)
        with pytest.raises(StackRunning), state.locked(tmp_path):
            pass
    assert not state.is_locked(tmp_path)


def test_the_state_of_a_dead_supervisor_says_stopped(tmp_path: Path) -> None:
    Layout(tmp_path).create()
    StackStatus(tmp_path, phase="ready", pid=os.getpid(), pid_started_s=1.0).write()  # the pid was used again
    found = state.read(tmp_path)
    assert (found.phase, found.pid, found.parts) == ("stopped", None, ())


def test_when_a_process_started_is_told_without_the_clock() -> None:
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    assert state.started_s(psutil.Process()) == pytest.approx(ticks / os.sysconf("SC_CLK_TCK"), abs=0.01)


def test_workers_keep_their_certified_keys(tmp_path: Path) -> None:
    deployment, shape = signer(), Shape.split(1, 2, ())
    housing = workers.Workers(tmp_path, tmp_path / "w", deployment, shape)
    first = [worker.certificate_file.read_text() for worker in housing.certify()]
    again = [worker.certificate_file.read_text() for worker in housing.certify()]
    assert first == again
    names = [WorkerCertificate.verify_by_ring(text, deployment.ring).worker for text in first]
    assert names == ["prefill-1", "decode-1", "decode-2"]
    other = workers.Workers(tmp_path, tmp_path / "w", signer(), shape)
    assert [worker.certificate_file.read_text() for worker in other.certify()] != first


def settings_of(tmp_path: Path) -> Settings:
    return Settings(
        data_dir=tmp_path,
        database_url="postgresql+asyncpg://kvitto:hidden@/kvitto",
        valkey_url="unix:///run/v.sock?password=hidden",
        host="127.0.0.1",
        port=8080,
        model_dir=None,
        served_name="m",
        workers=(settings.WorkerSettings("prefill-1", "prefill", tmp_path / "s", tmp_path / "c"),),
        key_pepper=b"hidden" * 6,
        salt_secret=b"hidden" * 6,
        worker_secret=b"hidden" * 6,
        deployment_ring=RING,
        deployment_key_file=tmp_path / "deployment.pem",
        store_dir=tmp_path / "store",
        first_token=False,
    )


def test_settings_travel_through_a_private_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = settings_of(tmp_path)
    made.write(tmp_path / "settings.json")
    monkeypatch.setenv("KVITTO_SETTINGS_FILE", str(tmp_path / "settings.json"))
    assert settings.from_environment() == made
    assert stat.S_IMODE((tmp_path / "settings.json").stat().st_mode) == 0o600
    assert "hidden" not in repr(made)


def test_a_process_without_settings_says_who_starts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVITTO_SETTINGS_FILE", raising=False)
    with pytest.raises(SettingsMissing, match="kvitto up"):
        settings.from_environment()


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+asyncpg"])
def test_an_operators_database_may_be_spelled_as_usual(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVITTO_DATABASE_URL", f"{scheme}://u:p@db/k")
    assert settings.own_servers().database_url == "postgresql+asyncpg://u:p@db/k"


def test_children_do_not_inherit_our_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVITTO_DATABASE_URL", "postgresql://u:hidden@db/k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    assert "hidden" not in str(settings.child_environment({"A": "b"}))


def test_a_tail_has_the_last_lines_of_this_life_only(tmp_path: Path) -> None:
    log = tmp_path / "part.log"
    log.write_text("old\n")
    begun = journal.open_life(log)
    log.write_text("old\nnew 1\nnew 2\n")
    assert journal.tail(log, begun) == "new 1\nnew 2"


def test_a_large_log_is_moved_aside_and_followed_from_its_new_beginning(tmp_path: Path) -> None:
    log = tmp_path / "part.log"
    log.write_bytes(b"x" * (journal.LOG_BYTES_MAX + 1))
    journal.rotate(log)
    assert log.stat().st_size == 0
    assert (tmp_path / "part.log.1").stat().st_size == journal.LOG_BYTES_MAX + 1
    log.write_text("fresh\n")
    assert list(journal.read((log,), follow=False)) == ["fresh"]


def test_quotas_of_the_store_are_whole_bytes_or_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings.store_quotas() == settings.StoreQuotas(None, None)
    monkeypatch.setenv("KVITTO_STORE_BYTES_MAX", "1000000")
    monkeypatch.setenv("KVITTO_TENANT_BYTES_MAX", "0")
    assert settings.store_quotas() == settings.StoreQuotas(1_000_000, 0)


def test_what_gateways_keep_of_encoded_prompts_is_set_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings.encode_memo_bytes_max() == 64 * 2**20
    monkeypatch.setenv("KVITTO_ENCODE_MEMO_BYTES_MAX", "0")
    assert settings.encode_memo_bytes_max() == 0
    monkeypatch.setenv("KVITTO_ENCODE_MEMO_BYTES_MAX", "64MB")
    with pytest.raises(settings.SettingsInvalid, match="KVITTO_ENCODE_MEMO_BYTES_MAX"):
        settings.encode_memo_bytes_max()


def test_images_are_fetched_unless_the_operator_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings.image_urls()
    monkeypatch.setenv("KVITTO_IMAGE_URLS", "refuse")
    assert not settings.image_urls()
    monkeypatch.setenv("KVITTO_IMAGE_URLS", "no")
    with pytest.raises(settings.SettingsInvalid, match="KVITTO_IMAGE_URLS"):
        settings.image_urls()


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("KVITTO_TRUSTED_PROXIES", settings.trusted_proxies),
        ("KVITTO_PRIVATE_DESTINATIONS", settings.private_destinations),
    ],
)
def test_only_networks_that_are_named_are_believed_or_reached(
    monkeypatch: pytest.MonkeyPatch, name: str, read: Callable[[], tuple[str, ...]]
) -> None:
    assert read() == ()
    monkeypatch.setenv(name, "10.0.0.0/8, ::1")
    assert read() == ("10.0.0.0/8", "::1")
    monkeypatch.setenv(name, "10.0.0.0/8,all")
    with pytest.raises(settings.SettingsInvalid, match=name):
        read()


@pytest.mark.parametrize("written", ["1 GB", "-1", "1e9", "many"])
def test_a_quota_that_is_no_number_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    monkeypatch.setenv("KVITTO_STORE_BYTES_MAX", written)
    with pytest.raises(settings.SettingsInvalid, match="KVITTO_STORE_BYTES_MAX"):
        settings.store_quotas()
