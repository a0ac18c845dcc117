import dataclasses
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from engine.proof import signed
from engine.proof.attestation import PrefillAttestation, commitment
from engine.proof.certificate import DeploymentKey, worker_ring
from engine.proof.signed import PayloadInvalid, SignatureInvalid

NONCE = bytes(range(32))


def attestation(**changes: Any) -> PrefillAttestation:
    fields: dict[str, Any] = {
        "request_id": "0199c2a0-0000-7000-8000-000000000000",
        "attempt": 0,
        "stage": "prefill",
        "worker": "prefill-0",
        "namespace": "ab" * 32,
        "prompt_tokens": 1500,
        "hit_tokens": 1472,
        "owed_tokens": 0,
        "hit_device_tokens": 64,
        "hit_store_tokens": 1408,
        "block_tokens": 64,
        "retention_class": "chat",
        "promised_until": 1_796_682_163,
        "prompt_commitment": commitment(NONCE, range(1500)),
        "cached_prefix_commitment": commitment(NONCE, range(1472)),
        "memo": "opaque",
        "attested_at_ns": 1_796_077_364_664_027_570,
    }
    return PrefillAttestation(**(fields | changes))


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(0, 10**6), st.none() | st.integers(0, 2**40))
def test_an_attestation_survives_its_document(
    prompt: int, device: int, store: int, promised_until: int | None
) -> None:
    counts = {"hit_tokens": device + store, "hit_device_tokens": device, "hit_store_tokens": store}
    if device + store > prompt - 1:
        with pytest.raises(PayloadInvalid):
            attestation(prompt_tokens=prompt, **counts)
        return
    original = attestation(prompt_tokens=prompt, promised_until=promised_until, **counts)
    assert PrefillAttestation.from_payload(original.to_payload()) == original


@pytest.mark.parametrize(
    "changes",
    [
        {"hit_tokens": 1500, "hit_device_tokens": 92},
        {"owed_tokens": 28},
        {"owed_tokens": -1},
        {"hit_store_tokens": 1400},
        {"prompt_tokens": 0, "hit_tokens": 0, "hit_device_tokens": 0, "hit_store_tokens": 0},
        {"stage": "decode"},
        {"attempt": True},
        {"hit_tokens": 1472.0},
        {"promised_until": "soon"},
        {"memo": None},
    ],
)
def test_impossible_counts_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(PayloadInvalid):
        attestation(**changes)


def test_the_last_token_of_a_prompt_is_never_a_hit() -> None:
    assert attestation(owed_tokens=27).owed_tokens == 27
    with pytest.raises(PayloadInvalid):
        attestation(owed_tokens=28)


@pytest.mark.parametrize(
    "change", [{"kind": "else"}, {"attested_at_ns": 5}, {"attested_at_ns": "\u0661"}, {"extra": 1}]
)
def test_a_payload_of_another_shape_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(PayloadInvalid):
        PrefillAttestation.from_payload(attestation().to_payload() | change)


def test_a_worker_speaks_for_itself_only() -> None:
    deployment, key = DeploymentKey.generate(), Ed25519PrivateKey.generate()
    ring = worker_ring([deployment.certify("prefill-0", key.public_key(), 1)], deployment.public)
    assert PrefillAttestation.verify(attestation().sign(key), ring) == attestation()
    with pytest.raises(PayloadInvalid):
        PrefillAttestation.verify(attestation(worker="prefill-1").sign(key), ring)
    with pytest.raises(SignatureInvalid):
        PrefillAttestation.verify(attestation().sign(Ed25519PrivateKey.generate()), ring)
    with pytest.raises(PayloadInvalid):
        PrefillAttestation.verify(signed.sign(key, {"kind": "else"}), ring)


def test_commitments_bind_tokens_their_number_images_and_the_nonce() -> None:
    seen = {
        commitment(NONCE, [1, 2, 3]),
        commitment(NONCE, [1, 2]),
        commitment(NONCE, [1, 3, 2]),
        commitment(NONCE, [1, 2, 3, 0]),
        commitment(bytes(32), [1, 2, 3]),
        commitment(NONCE, [1, 2, 3], [(0, "a" * 64)]),
        commitment(NONCE, [1, 2, 3], [(0, "b" * 64)]),
        commitment(NONCE, [1, 2, 3], [(1, "a" * 64)]),
        commitment(NONCE, [1, 2, 3], [(0, "a" * 64), (2, "a" * 64)]),
    }
    assert len(seen) == 9
    behind = [(0, "a" * 64), (3, "b" * 64)]
    assert commitment(NONCE, [1, 2, 3], behind) == commitment(NONCE, [1, 2, 3], behind[:1])
    with pytest.raises(PayloadInvalid):
        commitment(b"short", [1])
    with pytest.raises(PayloadInvalid):
        commitment(NONCE, [2**32])


def test_an_attestation_cannot_be_changed_after_the_fact() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        attestation().hit_tokens = 0  # type: ignore[misc]  # what is tested
