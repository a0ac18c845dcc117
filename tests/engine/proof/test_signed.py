import json

import pytest
import rfc8785
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import example, given
from hypothesis import strategies as st

from engine.proof import signed
from engine.proof.certificate import DeploymentKey, WorkerCertificate, worker_ring
from engine.proof.signed import PayloadInvalid, SignatureInvalid

KEY = Ed25519PrivateKey.generate()
RING = {signed.key_id_of(KEY.public_key()): KEY.public_key()}
LEAVES = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(max_size=20)


def nested(leaves: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=8,
    )


JSON = nested(LEAVES)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


@given(st.dictionaries(st.text(max_size=8), JSON, max_size=4))
def test_what_was_signed_is_what_is_read(payload: dict[str, object]) -> None:
    assert signed.verify(signed.sign(KEY, payload), RING) == payload


@given(st.data())
def test_any_changed_character_is_noticed_or_changes_nothing(data: st.DataObject) -> None:
    payload = {"prompt_tokens": 1500, "memo": "tenant"}
    text = signed.sign(KEY, payload)
    at = data.draw(st.integers(0, len(text) - 1))
    changed = text[:at] + data.draw(st.characters(min_codepoint=32, max_codepoint=126)) + text[at + 1 :]
    try:
        assert signed.verify(changed, RING) == payload
    except SignatureInvalid:
        assert changed != text


def test_a_document_cannot_be_given_to_another_key() -> None:
    other = Ed25519PrivateKey.generate()
    document = json.loads(signed.sign(KEY, {"a": 1}))
    document["key_id"] = signed.key_id_of(other.public_key())
    with pytest.raises(SignatureInvalid):
        signed.verify(json.dumps(document), {document["key_id"]: other.public_key(), **RING})


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "{}", '{"key_id":1,"payload":{},"signature":""}', "\ud800"]
)
def test_garbage_is_no_document(text: str) -> None:
    with pytest.raises(SignatureInvalid):
        signed.verify(text, RING)


@given(nested(LEAVES | NUMBERS))
@example({"\U0001f600": 1, "\ufffe": 2})
@example("".join(map(chr, range(0xA1))) + '"\\')
def test_canonical_json_is_what_rfc_8785_says_of_every_value(value: object) -> None:
    assert signed.canonical(value) == rfc8785.dumps(value)


def test_canonical_json_sorts_keys_and_refuses_integers_that_doubles_cannot_hold() -> None:
    assert signed.canonical({"b": 1, "a": "\u20ac"}) == '{"a":"€","b":1}'.encode()
    with pytest.raises(PayloadInvalid):
        signed.canonical({"at_ns": 2**60})


def test_keys_survive_their_files() -> None:
    assert signed.key_id_of(signed.private_key(signed.private_pem(KEY)).public_key()) in RING
    with pytest.raises(PayloadInvalid):
        signed.private_key(b"-----BEGIN PRIVATE KEY-----\nMAo=\n-----END PRIVATE KEY-----\n")


def test_a_certificate_names_the_worker_and_its_key() -> None:
    deployment = DeploymentKey.from_pem(DeploymentKey.generate().to_pem())
    text = deployment.certify("prefill-0", KEY.public_key(), 1_790_000_000)
    certificate = WorkerCertificate.verify(text, deployment.public)
    assert (certificate.worker, certificate.issued_at_s) == ("prefill-0", 1_790_000_000)
    assert worker_ring([text], deployment.public) == {certificate.key_id: certificate}


def test_a_certificate_of_another_deployment_or_another_kind_is_refused() -> None:
    deployment, other = DeploymentKey.generate(), DeploymentKey.generate()
    with pytest.raises(SignatureInvalid):
        WorkerCertificate.verify(other.certify("w", KEY.public_key(), 1), deployment.public)
    with pytest.raises(PayloadInvalid):
        WorkerCertificate.verify(signed.sign(deployment.private, {"kind": "else"}), deployment.public)
