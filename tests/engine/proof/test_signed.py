import base64
import json
import re
from collections.abc import Mapping
from typing import Any

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


def is_canonical(text: bytes) -> bool:
    try:
        signed.canonical_value(text)
    except PayloadInvalid:
        return False
    return True


@given(nested(LEAVES | NUMBERS | st.integers(-(2**60), 2**60)), st.booleans())
@example({"\ufffe": 1, "\U0001f600": 2}, True)
@example([9007199254740993, {"a": [1.5, -9007199254740993]}], True)
def test_canonical_json_is_known_when_it_is_seen(value: object, compact: bool) -> None:
    separators = (",", ":") if compact else None
    text = json.dumps(value, ensure_ascii=False, sort_keys=compact, separators=separators).encode()
    try:
        defined = rfc8785.dumps(json.loads(text)) == text
    except rfc8785.CanonicalizationError:
        defined = False
    assert is_canonical(text) == defined


def as_it_stands(text: str, keys: Mapping[str, Any] = RING) -> dict[str, Any]:
    """The quick way where it may be taken, as who reads many documents does."""
    try:
        raw = text.encode()
        document = signed.canonical_value(raw)
    except (ValueError, PayloadInvalid):
        return signed.verify(text, keys)
    return signed.verify_canonical(raw, document, keys)


def verdict(read: Any, text: str) -> object:
    try:
        return read(text, RING)
    except SignatureInvalid:
        return SignatureInvalid


def signed_as(body: str) -> str:
    """A document that our own key has signed as it stands, whether or not that is canonical."""
    signature = base64.b64encode(KEY.sign(body.encode())).decode()
    return f'{body[:-1]},"signature":"{signature}"}}'


KEY_ID = next(iter(RING))
ODD = (
    f'{{"key_id":"{KEY_ID}","payload":{{"a":1,"a":2}}}}',
    f'{{"key_id":"{KEY_ID}","payload":{{"b":1,"a":2}}}}',
    f'{{"payload":{{"a":1}},"key_id":"{KEY_ID}"}}',
    f'{{"key_id":"{KEY_ID}","payload":{{"a":1.0}}}}',
    f'{{"key_id":"{KEY_ID}","payload":{{"a":1e2}}}}',
    f'{{"key_id":"{KEY_ID}","payload":{{"a":-0}}}}',
    f'{{"key_id":"{KEY_ID}","payload":{{"a":{2**60}}}}}',
    f'{{"key_id":"{KEY_ID}","payload":{{"a":NaN}}}}',
    f'{{"key_id":"{KEY_ID}","payload":{{"a":"\\u00e5"}}}}',
    f'{{"key_id":"{KEY_ID}","payload":{{"a":"\\ud800"}}}}',
    f'{{"key_id":"{KEY_ID}","payload":{{"a":"\\/"}}}}',
    f'{{"key_id":"{KEY_ID}","payload":{{"\ufffe":1,"\U0001f600":2}}}}',
    f'{{"key_id":"{KEY_ID}","payload":{{"a": 1}}}}',
    f'{{"key_id":"{KEY_ID}","payload":{{"a":1}},"payload":{{"a":2}}}}',
    f'{{"key_id":"{KEY_ID}","more":1,"payload":{{"a":1}}}}',
    f'{{"key_id":"{KEY_ID}","payload":[1]}}',
    '{"key_id":1,"payload":{}}',
    f'{{"key_id":"{KEY_ID}","payload":{{"a":{"[" * 5000}{"]" * 5000}}}}}',
)


@pytest.mark.parametrize("body", ODD, ids=range(len(ODD)))
def test_what_a_key_has_signed_uncanonically_is_refused_both_ways(body: str) -> None:
    text = signed_as(body)
    assert verdict(as_it_stands, text) == verdict(signed.verify, text) == SignatureInvalid


@given(st.dictionaries(st.text(max_size=8), nested(LEAVES | NUMBERS), max_size=4))
def test_a_document_is_read_as_it_stands(payload: dict[str, object]) -> None:
    text = signed.sign(KEY, payload)
    assert verdict(as_it_stands, text) == verdict(signed.verify, text)


@given(st.data())
def test_both_ways_agree_on_whatever_is_changed(data: st.DataObject) -> None:
    payload = {"memo": "å\n", "tokens": 1500, "kind": "x", "list": [1, None, {"b": True, "a": ""}]}
    text = signed.sign(KEY, payload)
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 3)))
        put = data.draw(
            st.sampled_from([*'"{}[],:0e. \\/u\n', "", "1", '"a":1,', "\\u0061", "\ufeff", "=", "B"])
        )
        text = text[:start] + put + text[end:]
    ways = verdict(as_it_stands, text), verdict(signed.verify, text)
    assert ways[0] == ways[1]
    assert ways[0] in (SignatureInvalid, payload)


def test_a_signature_has_one_text_and_a_document_nothing_unsigned() -> None:
    text = signed.sign(KEY, {"a": 1})
    last = text[-5]
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    alike = alphabet[alphabet.index(last) ^ 1]
    assert re.fullmatch('[A-Za-z0-9+/]=="}', text[-5:])
    for changed in (f'{text[:-5]}{alike}=="}}', text.replace('"payload"', '"more":1,"payload"')):
        assert verdict(signed.verify, changed) == verdict(as_it_stands, changed) == SignatureInvalid


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
