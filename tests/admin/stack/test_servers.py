"""The embedded servers, real ones."""

import os
import pwd
import shutil
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from admin.stack import postgres, process
from admin.stack.valkey import ValkeyBroken


async def test_a_database_of_its_own_answers_over_the_socket(database_url: str) -> None:
    connection = await asyncpg.connect(database_url.replace("+asyncpg", ""))
    try:
        assert await connection.fetchval("SELECT current_database()") in database_url
        assert await connection.fetchval("SHOW password_encryption") == "scram-sha-256"
        assert await connection.fetchval("SHOW listen_addresses") == ""
    finally:
        await connection.close()


async def test_postgres_refuses_a_wrong_password(postgres_server: Any) -> None:
    server = postgres_server.server
    url = server.url("wrong", "postgres", "postgres").replace("+asyncpg", "")
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(url)


async def test_the_application_role_owns_its_database_and_is_no_superuser(postgres_server: Any) -> None:
    url = postgres_server.server.url(postgres_server.passwords.role).replace("+asyncpg", "")
    connection = await asyncpg.connect(url)
    try:
        assert (
            await connection.fetchval("SELECT rolsuper FROM pg_roles WHERE rolname = current_user") is False
        )
        await connection.execute("CREATE TABLE made_by_the_owner (id int)")
        await connection.execute("DROP TABLE made_by_the_owner")
    finally:
        await connection.close()


def test_readiness_needs_the_pid_file_to_name_our_child(postgres_server: Any) -> None:
    server = postgres_server.server
    pid = int((server.data / "postmaster.pid").read_text().split()[0])
    assert server.ready(pid)
    assert not server.ready(pid + 1)


async def test_valkey_refuses_a_wrong_password_and_names_its_process(
    valkey_server: Any, valkey_url: str
) -> None:
    server = valkey_server.server
    with pytest.raises(ValkeyBroken):
        await server.call("wrong", "PING")
    assert not await server.ready(valkey_server.password, 1)


def test_the_sockets_are_in_private_folders(postgres_server: Any, valkey_server: Any) -> None:
    for server in (postgres_server.server, valkey_server.server):
        assert server.sockets.stat().st_mode & 0o777 == 0o700


def test_the_database_is_where_the_account_that_runs_it_can_reach_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    place = postgres.locate(tmp_path, tmp_path / "p")
    runs_it = place.account or process.Account.of(pwd.getpwuid(os.geteuid()))
    assert process.reachable(place.data, runs_it)
    assert process.reachable(place.binaries / "postgres", runs_it)
    assert postgres.locate(tmp_path, tmp_path / "p").data == place.data  # found again
    if place.data.parent != tmp_path.resolve():
        shutil.rmtree(place.data)


def test_a_database_that_is_gone_is_not_replaced_by_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "postgres").symlink_to(tmp_path / "gone")
    runs_by_root = process.unprivileged_account() is not None
    if runs_by_root:
        with pytest.raises(postgres.PostgresBroken, match="restore"):
            postgres.locate(tmp_path, tmp_path / "p")
    else:
        assert postgres.locate(tmp_path, tmp_path / "p").account is None


def test_a_folder_closed_to_others_is_not_reachable(tmp_path: Path) -> None:
    stranger = process.Account("stranger", 54_321, 54_321)
    inside = tmp_path / "closed" / "inside"
    inside.mkdir(parents=True)
    inside.parent.chmod(0o700)
    assert not process.reachable(inside / "file", stranger)
    assert process.reachable(Path("/etc/passwd"), stranger)
