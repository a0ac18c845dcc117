"""Whatever is altered in the log by somebody who can alter everything is named."""

from dataclasses import replace

import pytest

from admin import clock
from billing.db.access import OWNER
from billing.receipts.log.service import ReceiptLog
from tests.billing.conftest import AT_ONCE, signer
from tests.billing.receipts.log.conftest import Sealing

ALTERED = {
    "UPDATE receipt_leaf SET receipt = replace(receipt, 'chat', 'chet') WHERE leaf_index = 2": [
        "leaf 2 is not the hash of its receipt"
    ],
    "UPDATE receipt_leaf SET nonce = sha256('') WHERE leaf_index = 2": ["leaf 2 is not the hash"],
    "UPDATE receipt_leaf SET leaf = sha256('') WHERE leaf_index = 2": [
        "leaf 2 is not the hash of its receipt",
        "node 2 of level 0 is not the hash over its leaves",
        "node 1 of level 1 is not",
        "node 0 of level 2 is not",
    ],
    "UPDATE receipt_leaf SET tenant_id = 'ten_x' WHERE leaf_index = 2": [
        "leaf 2 differs from its event in tenant"
    ],
    "UPDATE receipt_leaf SET rated_at = now() WHERE leaf_index = 2": [
        "leaf 2 differs from its event in rated"
    ],
    "UPDATE usage_event SET charge = charge + 1 WHERE request_id = "
    "(SELECT request_id FROM receipt_leaf WHERE leaf_index = 2)": ["leaf 2 differs from its event in charge"],
    "UPDATE usage_event SET output = output + 1 WHERE request_id = "
    "(SELECT request_id FROM receipt_leaf WHERE leaf_index = 2)": ["leaf 2 differs from its event in usage"],
    "UPDATE usage_event SET recorded_at = 'epoch' WHERE request_id = "
    "(SELECT request_id FROM receipt_leaf WHERE leaf_index = 4)": [
        "leaf 4",
        "before the cut of the head before",
    ],
    "UPDATE usage_event SET recorded_at = now() WHERE request_id = "
    "(SELECT request_id FROM receipt_leaf WHERE leaf_index = 0)": ["leaf 0", "behind the cut of its head"],
    "DELETE FROM usage_event WHERE request_id = (SELECT request_id FROM receipt_leaf WHERE leaf_index = 2)": [
        "leaf 2 is of request",
        "which has no event",
    ],
    "DELETE FROM receipt_leaf WHERE leaf_index = 2": ["has no leaf", "leaf 2 is missing"],
    "UPDATE receipt_leaf SET leaf_index = 9 WHERE leaf_index = 2": ["leaf 2 is missing"],
    "UPDATE tree_node SET hash = sha256('') WHERE level = 1 AND position = 0": [
        "node 0 of level 1 is not the hash over its leaves",
        "the head of size 3 has another root than its leaves",
    ],
    "DELETE FROM tree_node WHERE level = 2": [
        "node 0 of level 2 is not the hash over its leaves",
        "the head of size 5 has another root than its leaves",
    ],
    "UPDATE tree_head SET root = sha256('') WHERE size = 3": [
        "the head of size 3 has another root than its leaves",
        "the head of size 3 is signed otherwise than it is stored",
    ],
    "UPDATE tree_head SET document = document || ' ' WHERE size = 3": [],
    "UPDATE tree_head SET document = replace(document, '3', '4') WHERE size = 3": [
        "the head of size 3 is not signed by the deployment"
    ],
    "DELETE FROM tree_head WHERE size = 5": [
        "the log ends at 5, and no head does",
        "leaf 3 is under no head",
        "leaf 4 is under no head",
    ],
}


@pytest.mark.parametrize("statement", ALTERED)
async def test_what_is_altered_is_named(sealing: Sealing, statement: str) -> None:
    await sealing.settle(1, 2, 3)
    await sealing.seal()
    await sealing.settle(4, 5)
    await sealing.seal()
    assert await sealing.log.check_integrity(sealing.signer.ring) == []
    async with sealing.house.database.transaction(OWNER) as connection:
        altered = await connection.exec_driver_sql(statement)
        assert altered.rowcount >= 1
    faults = await sealing.log.check_integrity(sealing.signer.ring)
    told = "; ".join(faults)
    parts = ALTERED[statement]
    assert [part for part in parts if part not in told] == [], told
    assert bool(faults) == bool(parts)


async def test_a_head_that_another_deployment_signed_is_named(sealing: Sealing) -> None:
    await sealing.settle(1)
    await ReceiptLog(sealing.house.database, signer(), replace(AT_ONCE)).seal(clock.now())
    (fault,) = await sealing.log.check_integrity(sealing.signer.ring)
    assert "the head of size 1 is not signed by the deployment" in fault
