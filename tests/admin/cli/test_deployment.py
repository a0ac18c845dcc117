"""`kvitto deployment` and `kvitto audit log` on the books of a stack."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from admin import clock
from admin.stack import secrets
from admin.stack.state import Layout, locked
from billing.db.access import OWNER
from billing.db.transaction import Database
from billing.receipts.log.service import ReceiptLog
from engine.proof.ring import DeploymentRing
from tests.deployment import signer


def test_a_key_is_rotated_while_the_stack_is_down(kvitto: Any, cli_settings: Any) -> None:
    data_dir: Path = cli_settings.data_dir
    anchor = secrets.load_or_create(data_dir).deployment.ring.present.id
    assert f"Anchor: {anchor}" in kvitto("deployment", "keys").out
    with locked(data_dir):
        ran = kvitto("deployment", "rotate-key", "--yes")
    assert ran.status == 1
    assert "a stack already runs" in ran.err
    assert kvitto("deployment", "rotate-key", "--yes").status == 0
    ring = DeploymentRing.read(json.dumps(kvitto("deployment", "keys", "--json").told))
    assert [key.id for key in ring.keys] == [
        anchor,
        secrets.load_or_create(data_dir).deployment.ring.present.id,
    ]
    listed = kvitto("deployment", "keys").out
    assert all(key.id in listed for key in ring.keys)
    assert f"Anchor: {anchor}" in listed


def test_a_directory_without_a_deployment_says_so(kvitto: Any, cli_settings: Any) -> None:
    for words in (("keys",), ("rotate-key", "--yes")):
        ran = kvitto("deployment", *words)
        assert ran.status == 1
        assert "cannot read the keys" in ran.err
    assert not (Layout(cli_settings.data_dir).data_dir / "secrets").exists()


@pytest.fixture
def sealed(cli_settings: Any) -> Any:
    """Does something on the database of the stack."""

    def run(work: Any) -> Any:
        async def connected() -> Any:
            database = Database(cli_settings.database_url, pool_size=2)
            try:
                return await work(database)
            finally:
                await database.close()

        return asyncio.run(connected())

    return run


def test_the_receipt_log_is_computed_again_and_an_alteration_is_named(kvitto: Any, sealed: Any) -> None:
    assert kvitto("audit", "log", "--json").told == {"whole": True, "faults": []}
    assert kvitto("audit", "log").out == "The receipt log is whole.\n"
    sealed(lambda database: ReceiptLog(database, signer()).close(clock.now()))
    ran = kvitto("audit", "log")
    assert ran.status == 1
    assert "the head of size 0 is not signed by the deployment" in ran.out

    async def forget(database: Database) -> None:
        async with database.transaction(OWNER) as connection:
            await connection.execute(text("DELETE FROM tree_head"))

    sealed(forget)
    assert kvitto("audit", "log").status == 0
