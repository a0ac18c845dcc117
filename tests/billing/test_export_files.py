"""Exports in the background: made once, whole, whoever dies; fetched by a link that ends; forgotten."""

import asyncio
import hashlib
import os
import stat
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from billing.audit.service import Audit
from billing.errors import ExportMissing, ExportsBusy, StoreUnavailable, TenantMissing
from billing.interval import Interval
from billing.queue import Job
from billing.reports.export.files.link import Links
from billing.reports.export.files.private_file import PrivateFile
from billing.reports.export.files.service import ATTEMPTS_MAX, JOB, KEPT, UNFINISHED_MAX, ExportFiles
from billing.reports.export.order import ExportOrder
from billing.settlement.posting import post
from tests.billing.conftest import NOON
from tests.billing.test_queue import running, until

DAY = Interval(NOON - timedelta(hours=12), NOON + timedelta(hours=12))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "exports"


@pytest.fixture
async def files(house: Any, folder: Path) -> ExportFiles:
    await post(house.database, [house.event(number) for number in range(3)])
    return ExportFiles(house.database, folder)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def order_of(house: Any) -> ExportOrder:
    return ExportOrder("requests", "csv", DAY, tenant_id=house.tenant_id)


async def test_an_export_is_made_by_the_queue_and_its_digest_is_the_files(
    house: Any, database_url: str, files: ExportFiles, folder: Path
) -> None:
    record = await files.request(order_of(house), house.key_id, NOON)
    assert (record.status, record.attempt) == ("waiting", 0)
    with pytest.raises(ExportMissing):
        files.file_of(record)
    async with running(database_url, Job(JOB, files.make)):
        await until(lambda: _is(files, record.id, "done"))
    made = await files.export(record.id, house.tenant_id)
    path = files.file_of(made)
    content = path.read_bytes()
    assert (made.rows, made.size_bytes, made.sha256) == (3, len(content), hashlib.sha256(content).hexdigest())
    assert made.finished_at is not None
    assert made.expires_at == made.finished_at + KEPT
    assert content.count(b"\r\n") == 4
    assert [mode(path), mode(folder)] == [0o600, 0o700]
    assert names(folder) == [path.name]
    deed = (await Audit(house.database).events(house.tenant_id))[-1].deed
    assert (deed.action, deed.object, deed.actor) == ("export.request", record.id, house.key_id)


async def _is(files: ExportFiles, export_id: str, status: str) -> bool:
    return (await files.export(export_id)).status == status


async def _is_not(files: ExportFiles, export_id: str, status: str) -> bool:
    return not await _is(files, export_id, status)


async def test_a_job_that_died_is_done_again_and_there_is_one_file(
    house: Any, files: ExportFiles, folder: Path
) -> None:
    record = await files.request(order_of(house), "test", NOON)
    dying = asyncio.create_task(files.make(record.id))
    await until(lambda: _is_not(files, record.id, "waiting"))
    dying.cancel()
    await asyncio.wait({dying})
    assert (await files.export(record.id)).status in ("running", "done")
    await files.make(record.id)
    made = await files.export(record.id)
    assert made.status == "done"
    assert names(folder) == [made.stored_name]
    await files.make(record.id)
    assert await files.export(record.id) == made, "what is done is not done again"


async def test_who_was_overtaken_throws_its_file_away(house: Any, files: ExportFiles, folder: Path) -> None:
    """Two workers at the same export, one thought dead: the later attempt's file is the only one."""
    record = await files.request(order_of(house), "test", NOON)
    await asyncio.gather(*(files.make(record.id) for _ in range(4)))
    made = await files.export(record.id)
    assert (made.status, made.rows) == ("done", 3)
    assert names(folder) == [made.stored_name]


async def test_a_full_disk_is_tried_again_and_given_up_with_its_reason(house: Any, tmp_path: Path) -> None:
    (tmp_path / "exports").write_text("not a folder")
    files = ExportFiles(house.database, tmp_path / "exports")
    record = await files.request(order_of(house), "test", NOON)
    for attempt in range(1, ATTEMPTS_MAX):
        with pytest.raises(OSError, match="exports"):
            await files.make(record.id)
        waiting = await files.export(record.id)
        assert (waiting.status, waiting.attempt) == ("waiting", attempt)
    await files.make(record.id)
    failed = await files.export(record.id)
    assert failed.status == "failed"
    assert failed.reason is not None
    assert "exports" in failed.reason


async def test_files_go_when_they_were_kept_for_long_enough_or_are_deleted(
    house: Any, files: ExportFiles, folder: Path
) -> None:
    first, second, third = [await files.request(order_of(house), "test", NOON) for _ in range(3)]
    for record in (first, second, third):
        await files.make(record.id)
    made = await files.export(first.id)
    assert made.expires_at is not None
    assert await files.forget(made.expires_at - timedelta(hours=1)) == 0
    await files.delete(second.id, house.tenant_id, "ann", NOON)
    assert f"{second.id}.1" not in names(folder)
    with pytest.raises(ExportMissing):
        await files.export(second.id, house.tenant_id)
    with pytest.raises(ExportMissing):
        await files.delete(second.id, house.tenant_id, "ann", NOON)
    (folder / "exp_stray.1").write_bytes(b"of an attempt that was overtaken and killed")
    half = folder / ".exp_half.1.99"
    half.write_bytes(b"of one that died while writing")
    os.utime(half, (0, 0))
    (folder / ".exp_being_made.1.99").write_bytes(b"")
    os.utime(folder / ".exp_being_made.1.99", (made.expires_at.timestamp(),) * 2)
    assert await files.forget(made.expires_at) >= 3
    assert (await files.export(first.id)).status == "expired"
    with pytest.raises(ExportMissing):
        files.file_of(await files.export(first.id))
    assert names(folder) == [".exp_being_made.1.99", f"{third.id}.1"]


async def test_a_deleted_export_is_not_made_any_more(house: Any, files: ExportFiles, folder: Path) -> None:
    record = await files.request(order_of(house), "test", NOON)
    await files.delete(record.id, house.tenant_id, "ann", NOON)
    await files.make(record.id)
    assert names(folder.parent) == []


async def test_a_tenant_reaches_no_export_of_another_and_only_so_many_wait(
    house: Any, files: ExportFiles
) -> None:
    other = await house.other_tenant()
    records = [await files.request(order_of(house), "test", NOON) for _ in range(UNFINISHED_MAX)]
    with pytest.raises(ExportsBusy):
        await files.request(order_of(house), "test", NOON)
    await files.request(order_of(other), "test", NOON)
    for call in (
        files.export(records[0].id, other.tenant_id),
        files.delete(records[0].id, other.tenant_id, "eve", NOON),
    ):
        with pytest.raises(ExportMissing):
            await call
    assert {each.id for each in await files.exports(house.tenant_id)} == {each.id for each in records}
    with pytest.raises(TenantMissing):
        await files.request(replace(order_of(house), tenant_id="ten_nobody"), "test", NOON)


def test_a_link_is_for_one_file_until_its_end() -> None:
    links, expires = Links(b"s" * 32), int(NOON.timestamp())
    signature = links.sign("exp_1", expires)
    before = NOON - timedelta(seconds=1)
    assert links.holds("exp_1", expires, signature, before)
    assert not links.holds("exp_1", expires, signature, NOON)
    assert not links.holds("exp_2", expires, signature, before)
    assert not links.holds("exp_1", expires + 1, signature, before)
    assert not links.holds("exp_1", expires, signature[:-1] + "é", before)
    assert not Links(b"t" * 32).holds("exp_1", expires, signature, before)


async def test_a_file_that_is_not_finished_leaves_the_one_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "kept.csv"
    path.write_bytes(b"before")

    async def write(piece: bytes, error: Exception | None = None) -> None:
        async with PrivateFile(path) as file:
            await file.write(piece)
            if error is not None:
                raise error

    with pytest.raises(StoreUnavailable):
        await write(b"half", StoreUnavailable("gone"))
    assert path.read_bytes() == b"before"
    assert names(tmp_path) == ["kept.csv"]
    await write(b"after")
    assert path.read_bytes() == b"after"
