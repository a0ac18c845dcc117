"""Receipts over REST: who sees which, in which state, and the log as those without a key see it."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from admin import clock
from admin.verify.statement import Statement, check_statement
from admin.verify.trust import Pin
from billing.receipts.bundle import Consistency
from billing.receipts.head import TreeHead
from billing.receipts.log.service import ReceiptLog
from billing.receipts.merkle import check_consistency
from billing.receipts.service import Receipts
from billing.tenancy.api_key import KeyTerms, Scope
from engine.api import GenerateRequest
from engine.proof.attestation import Attestation, DecodeAttestation, PrefillAttestation
from engine.proof.certificate import DeploymentKey
from gateway.public_log import BURST, Pace
from gateway.refusal import LogBusy
from tests.billing.conftest import AT_ONCE
from tests.bundles import key_of
from tests.gateway.conftest import EPOCH, SIGNER, House, furnish, served
from tests.gateway.doubles import ScriptedGeneration
from tests.gateway.test_description import check

WORKERS = {name: key_of(name) for name in ("prefill-0", "decode-0")}


@dataclass(frozen=True)
class FromJournal:
    """Implements `billing.receipts.receipt.Journaled`."""

    attestation: Attestation
    document: str
    certificate: str


def journaled(attestation: Attestation) -> FromJournal:
    key = WORKERS[attestation.worker]
    deployment = DeploymentKey(SIGNER.private)
    return FromJournal(
        attestation, attestation.sign(key), deployment.certify(attestation.worker, key.public_key(), 1)
    )


class SigningGeneration(ScriptedGeneration):
    """A prefill that is signed, at an instant that can be."""

    async def prefilled(self) -> tuple[PrefillAttestation, str]:
        attestation, _ = await super().prefilled()
        attestation = replace(attestation, attested_at_ns=int(clock.now().timestamp() * 1e9))
        return attestation, journaled(attestation).document


@pytest.fixture
async def house(database_url: str, valkey_url: str) -> AsyncIterator[House]:
    furnished = await furnish(database_url, valkey_url)

    def submit(request: GenerateRequest) -> ScriptedGeneration:
        furnished.engine.generations.append(SigningGeneration(request, furnished.engine.play))
        return furnished.engine.generations[-1]

    furnished.engine.submit = submit  # type: ignore[method-assign]  # of this one object
    async with served(furnished) as house:
        yield house


async def asked(house: House, key: str | None = None) -> str:
    """The id of a request that was answered, and whose workers' journals were drained."""
    headers = {"authorization": f"Bearer {key or house.key}"}
    said = {"model": "smollm2-135m-instruct", "messages": [{"role": "user", "content": "Hi"}]}
    async with house.session.post(f"{house.url}/v1/chat/completions", json=said, headers=headers) as answer:
        assert answer.status == 200
        request_id = answer.headers["x-request-id"]
    await house.settled()
    generation = house.engine.generations[-1]
    prefill, _ = await generation.prefilled()
    decode = DecodeAttestation(
        request_id=request_id,
        attempt=1,
        stage="decode",
        worker="decode-0",
        namespace="test",
        prompt_tokens=prefill.prompt_tokens,
        handoff_tokens=0,
        output_from=0,
        output_to=6,
        ended="stop",
        memo=prefill.memo,
        attested_at_ns=prefill.attested_at_ns,
    )
    await Receipts(house.parts.database).keep([journaled(prefill), journaled(decode)])
    return request_id


async def seal(house: House) -> None:
    house.desk.log._newest.forget()
    await ReceiptLog(house.parts.database, SIGNER, AT_ONCE).seal(clock.now())


async def shown(house: House, path: str, key: str | None = None) -> tuple[int, Any, Any]:
    """Status, body and headers; the house's own key unless another is named, none where it is empty."""
    headers = {"authorization": f"Bearer {house.key if key is None else key}"} if key != "" else {}
    async with house.session.get(f"{house.url}{path}", headers=headers) as answer:
        return answer.status, await answer.json(), answer.headers


async def key_with(house: House, *scopes: Scope, tenant_id: str | None = None) -> str:
    terms = KeyTerms(scopes=frozenset(scopes))
    issued = await house.parts.tenancy.create_key(tenant_id or house.tenant_id, "k", EPOCH, terms=terms)
    return issued.secret


async def test_a_sealed_receipt_comes_with_all_that_it_takes_to_check_it(
    house: House, tmp_path: Path
) -> None:
    request_id = await asked(house)
    await seal(house)
    status, body, headers = await shown(house, f"/v1/receipts/{request_id}")
    assert (status, body["state"], headers["cache-control"]) == (200, "sealed", "private, no-store")
    check("SealedReceipt", body)
    (tmp_path / "R.json").write_text(json.dumps(body))
    report = check_statement(Statement.read(tmp_path / "R.json", Pin(ring=SIGNER.ring)))
    assert report.findings == []
    assert report.checked.document is not None
    assert (str(report.checked.document.request_id), report.checked.document.grade) == (
        request_id,
        "attested",
    )
    assert bytes.fromhex(body["nonce"]) == house.engine.generations[-1].request.nonce


async def test_before_it_is_sealed_it_is_pending_with_what_is_known(house: House) -> None:
    request_id = await asked(house)
    status, body, headers = await shown(house, f"/v1/receipts/{request_id}")
    assert (status, body["state"], body["grade"], body["workers"]) == (
        200,
        "pending",
        "attested",
        ["decode-0", "prefill-0"],
    )
    check("PendingReceipt", body)
    assert body["usage"]["output"] == 6
    assert int(headers["retry-after"]) > 0
    assert "nonce" not in body


async def test_keys_see_what_is_their_tenants_and_the_nonce_is_for_the_key_that_asked(house: House) -> None:
    request_id = await asked(house)
    await seal(house)
    path = f"/v1/receipts/{request_id}"
    for scopes in (("usage_read",), ("management",), ("usage_read", "inference")):
        status, body, _ = await shown(house, path, await key_with(house, *scopes))
        assert (status, "nonce" in body) == (200, False)
    blind = await key_with(house, "inference")
    assert (await shown(house, path, blind))[0] == 404
    own = await asked(house, blind)
    await seal(house)
    status, body, _ = await shown(house, f"/v1/receipts/{own}", blind)
    assert (status, "nonce" in body) == (200, True)


async def test_another_tenants_receipt_is_the_same_as_none(house: House) -> None:
    request_id = await asked(house)
    other = await house.parts.tenancy.create_tenant(f"other-{uuid4().hex[:6]}", at=EPOCH)
    stranger = await key_with(house, "usage_read", "inference", tenant_id=other.id)
    for state in ("pending", "sealed"):
        seen = []
        for named in (request_id, str(uuid4()), "nothing"):
            status, body, headers = await shown(house, f"/v1/receipts/{named}", stranger)
            text = json.dumps(body).replace(named, "ID")
            seen.append((status, text, {*headers} - {"content-length"}))
        assert seen[0] == seen[1] == seen[2], state
        assert seen[0][0] == 404
        await seal(house)


async def test_witnesses_need_no_key_and_can_prove_that_the_log_has_only_grown(house: House) -> None:
    await asked(house)
    await seal(house)
    await asked(house)
    await seal(house)
    status, body, headers = await shown(house, "/v1/receipts/log", "")
    check("ReceiptLog", body)
    newest = TreeHead.verify(json.dumps(body["head"]), SIGNER.ring)
    assert (status, json.dumps(body["keys"], separators=(",", ":"))) == (200, SIGNER.ring.to_text())
    assert headers["cache-control"].startswith("public")
    _, page, _ = await shown(house, "/v1/receipts/log/heads?limit=1", "")
    check("SignedList", page)
    assert page["has_more"]
    first = TreeHead.verify(json.dumps(page["data"][0]), SIGNER.ring)
    _, rest, _ = await shown(house, f"/v1/receipts/log/heads?after={first.size}", "")
    assert TreeHead.verify(json.dumps(rest["data"][-1]), SIGNER.ring) == newest
    assert not rest["has_more"]
    query = f"first={first.size}&second={newest.size}"
    status, proof, headers = await shown(house, f"/v1/receipts/log/consistency?{query}", "")
    check("LogConsistency", proof)
    path = [bytes.fromhex(each) for each in proof["path"]]
    check_consistency((first.size, first.root), (newest.size, newest.root), path)
    assert Consistency(first.size, newest.size, tuple(path)).path
    assert "immutable" in headers["cache-control"]
    _, certified, _ = await shown(house, "/v1/receipts/log/certificates", "")
    assert {each["payload"]["worker"] for each in certified["data"]} == {"prefill-0", "decode-0"}


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("first=0&second=99999", 404),
        ("first=9&second=1", 404),
        ("first=-1&second=1", 400),
        ("first=a&second=1", 400),
        ("second=1", 400),
        (f"first=0&second={2**63}", 400),
    ],
)
async def test_proofs_of_heads_that_are_none_are_refused(house: House, query: str, status: int) -> None:
    found, body, _ = await shown(house, f"/v1/receipts/log/consistency?{query}", "")
    assert (found, set(body)) == (status, {"error"})


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "after=-2", "after=x"])
async def test_pages_of_heads_are_bounded(house: House, query: str) -> None:
    assert (await shown(house, f"/v1/receipts/log/heads?{query}", ""))[0] == 400


async def test_the_log_is_asked_no_oftener_than_it_answers(house: House) -> None:
    statuses = await asyncio.gather(
        *(shown(house, "/v1/receipts/log/certificates", "") for _ in range(int(BURST) + 100))
    )
    refused = [headers for status, _, headers in statuses if status == 429]
    assert refused
    assert all(int(headers["retry-after"]) == 1 for headers in refused)
    assert (await shown(house, "/user/balance"))[0] == 200


def test_the_pace_is_even_and_bursts_are_bounded() -> None:
    now_s = [0.0]
    pace = Pace(lambda: now_s[0], left=2.0)
    pace.take()
    pace.take()
    with pytest.raises(LogBusy):
        pace.take()
    now_s[0] = 0.02
    pace.take()
    with pytest.raises(LogBusy):
        pace.take()
    now_s[0] = 1e6
    pace.take()
    assert pace.left == BURST - 1
