"""Exports in the background. One is written at a time, in the order in which they were asked for.

An attempt writes a file of its own, and the last attempt that began has the only one that counts: a job that
died is done again from the beginning, one that was thought dead and goes on finds itself overtaken and throws
its file away. So there is never half a file, and never two.
"""

import asyncio
import secrets
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from billing.audit import service as audit
from billing.audit.event import HOUSE, Deed
from billing.db.access import SETTLER, reading, writing
from billing.db.pages import WHOLE, Page
from billing.db.transaction import Database
from billing.errors import (
    ChargeUnexplained,
    ExportMissing,
    ExportsBusy,
    StoreRefused,
    StoreUnavailable,
    TenantMissing,
)
from billing.queue import enqueue
from billing.reports.export.files import repository
from billing.reports.export.files.private_file import PrivateFile
from billing.reports.export.files.record import ExportRecord
from billing.reports.export.order import ExportOrder
from billing.reports.export.service import Exports

JOB: Final = "write_export"
KEPT: Final = timedelta(days=7)
UNFINISHED_MAX: Final = 5  # of one tenant
ATTEMPTS_MAX: Final = 10

_WRITING_MAX: Final = timedelta(days=1)


class ExportFiles:
    """What was asked for, and its files.

    Args:
        folder: of the files, shared by the jobs and all gateways; made when needed. None: files are not
            within reach of this process, which can ask for them still.
    """

    def __init__(self, database: Database, folder: Path | None) -> None:
        self._database = database
        self._folder = folder
        self._exports = Exports(database)

    async def request(self, order: ExportOrder, actor: str, at: datetime) -> ExportRecord:
        """Have an export made.

        Raises:
            ExportsBusy: too many of this tenant wait already.
            TenantMissing: there is no such tenant.
        """
        record = ExportRecord(f"exp_{secrets.token_hex(12)}", order, at, actor, "waiting", 0)
        chain = order.tenant_id or HOUSE
        try:
            async with self._database.transaction(writing(order.tenant_id)) as connection:
                if await repository.lock_unfinished(connection, order.tenant_id) >= UNFINISHED_MAX:
                    raise ExportsBusy(UNFINISHED_MAX)
                await repository.insert_export(connection, record)
                await enqueue(connection, JOB, {"export_id": record.id}, lock=JOB)
                wanted = Deed(chain, actor, "export.request", record.id, at, after=order.to_builtins())
                await audit.append(connection, wanted)
        except StoreRefused as refused:
            if refused.constraint == "fk_usage_export_tenant_id":
                raise TenantMissing(chain) from refused
            raise
        return record

    async def export(self, export_id: str, tenant_id: str | None = None) -> ExportRecord:
        """One by its id, of this tenant; ExportMissing when there is none, or it is deleted."""
        async with self._database.transaction(reading(tenant_id)) as connection:
            record = await repository.select_export(connection, export_id)
        if record is None or record.status == "deleted":
            raise ExportMissing(export_id)
        return record

    async def exports(self, tenant_id: str | None = None, page: Page = WHOLE) -> list[ExportRecord]:
        """Those of a tenant, or all; oldest first."""
        async with self._database.transaction(reading(tenant_id)) as connection:
            return await repository.select_exports(connection, tenant_id, page)

    async def delete(self, export_id: str, tenant_id: str | None, actor: str, at: datetime) -> ExportRecord:
        """Take an export back, finished or not: its file goes, its links end; ExportMissing likewise."""
        async with self._database.transaction(writing(tenant_id)) as connection:
            record = await repository.mark_deleted(connection, export_id)
            if record is None:
                raise ExportMissing(export_id)
            chain = record.order.tenant_id or HOUSE
            before = record.order.to_builtins()
            await audit.append(connection, Deed(chain, actor, "export.delete", export_id, at, before=before))
        await asyncio.to_thread(self._remove, record)
        return record

    def file_of(self, record: ExportRecord) -> Path:
        """Where the file of a finished export is; ExportMissing: not finished, not kept, not within reach."""
        path = None if self._folder is None else self._folder / record.stored_name
        if record.status != "done" or path is None or not path.is_file():
            raise ExportMissing(record.id)
        return path

    async def make(self, export_id: str) -> None:
        """Write the file of an export: the job.

        Raises:
            StoreUnavailable, OSError: the job is to be done again; after ten attempts it is given up.
        """
        async with self._database.transaction(SETTLER) as connection:
            record = await repository.claim(connection, export_id)
        if record is None:
            return
        assert self._folder is not None, "jobs have the folder"
        path = self._folder / record.stored_name
        try:
            await asyncio.to_thread(self._folder.mkdir, mode=0o700, exist_ok=True)
            async with PrivateFile(path) as file:
                written = await self._exports.write(record.order, file.write)
        except ChargeUnexplained as never:
            await self._give_up(record, str(never), for_good=True)
        except (StoreUnavailable, OSError) as failed:
            last = record.attempt >= ATTEMPTS_MAX
            await self._give_up(record, str(failed), for_good=last)
            if not last:
                raise
        else:
            async with self._database.transaction(SETTLER) as connection:
                counts = await repository.finish(connection, record, written, KEPT)
            if counts:  # an attempt that died behind its last word may have left a file
                await asyncio.to_thread(self._remove, record, path)
            else:
                await asyncio.to_thread(path.unlink, missing_ok=True)

    async def forget(self, at: datetime) -> int:
        """Let go of what has been kept for long enough, and of files that nobody knows of; how many went."""
        found = await asyncio.to_thread(self._files, at)  # before the books: what comes later is not judged
        async with self._database.transaction(SETTLER) as connection:
            await repository.expire(connection, at)
            kept = await repository.select_kept(connection)
        gone = [path for path in found if path.name not in kept]
        for path in gone:
            await asyncio.to_thread(path.unlink, missing_ok=True)
        return len(gone)

    async def _give_up(self, record: ExportRecord, reason: str, *, for_good: bool) -> None:
        async with self._database.transaction(SETTLER) as connection:
            await repository.give_up(connection, record, reason, for_good=for_good)

    def _remove(self, record: ExportRecord, but: Path | None = None) -> None:
        """The files of all attempts at an export, but for one."""
        for path in () if self._folder is None else self._folder.glob(f"{record.id}.*"):
            if path != but:
                path.unlink(missing_ok=True)

    def _files(self, at: datetime) -> list[Path]:
        """Files of exports, and what those who died while writing have left."""
        if self._folder is None or not self._folder.is_dir():
            return []
        long_ago = (at - _WRITING_MAX).timestamp()
        left = [path for path in self._folder.glob(".exp_*") if path.stat().st_mtime < long_ago]
        return [*self._folder.glob("exp_*"), *left]
