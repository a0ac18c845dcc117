"""What is attested of a prompt is hidden, and the key that sent it can open it later."""

from uuid import UUID

from billing.receipts.log.service import ReceiptLog
from engine.proof.attestation import commitment
from tests.gateway.conftest import EPOCH, House


async def test_the_nonce_of_a_request_is_told_again_to_its_key(house: House) -> None:
    for _ in range(2):
        async with house.chat() as answer:
            await answer.json()
    first, second = (generation.request for generation in house.engine.generations)
    assert first.nonce != second.nonce, "each request has its own"
    await house.settled(2)
    request_id = UUID(first.request_id)
    nonce = await ReceiptLog(house.parts.database).prompt_nonce(request_id, house.tenant_id, house.key_id)
    assert nonce == first.nonce
    assert commitment(nonce, first.prompt_ids) != commitment(second.nonce, second.prompt_ids)


async def test_another_tenants_secret_is_another(house: House) -> None:
    tenancy = house.parts.tenancy
    own = await tenancy.find_key(tenancy.digest(house.key))
    other = await tenancy.create_tenant(f"other-{house.tenant_id}", at=EPOCH)
    issued = await tenancy.create_key(other.id, "test", EPOCH)
    theirs = await tenancy.find_key(tenancy.digest(issued.secret))
    assert own is not None
    assert theirs is not None
    assert len(own.nonce_secret) == len(theirs.nonce_secret) == 32
    assert own.nonce_secret != theirs.nonce_secret
    assert own.nonce_secret.hex() not in repr(own)
    assert str(own.nonce_secret) not in repr(own)
