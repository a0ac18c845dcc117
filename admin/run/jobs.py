"""The process of the background jobs."""

import asyncio
import os
import signal
import sys

from admin import settings
from admin.jobs import jobs_of, keep_running
from admin.settings import Settings, write_private
from billing.db.transaction import Database
from billing.ledger.service import Ledger
from billing.settlement.batch import Settlement
from gateway.admission.admit import Admission
from gateway.sweep import Sweeper
from gateway.telemetry import log, log_to_stderr
from gateway.valkey import Valkey


async def run(known: Settings) -> None:
    """Run all jobs until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    database = Database(known.database_url, pool_size=2)
    valkey = Valkey.connect(known.valkey_url)
    settlement = Settlement(database)
    await settlement.start()
    try:
        ready = known.data_dir / "run" / "jobs.ready"
        write_private(ready, str(os.getpid()).encode())
        ledger = Ledger(database)
        log.info("jobs_run")
        jobs = jobs_of(Sweeper(valkey, settlement, ledger), ledger, Admission(valkey))
        await keep_running(jobs, stop)
    finally:
        await settlement.close()
        await valkey.close()
        await database.close()


def main() -> int:
    """Entry point; returns the exit status."""
    log_to_stderr()
    asyncio.run(run(settings.from_environment()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
