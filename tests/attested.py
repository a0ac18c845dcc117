"""What workers attest, made up, and documents as they are kept: nobody checks a signature again."""

import json
from dataclasses import dataclass
from typing import Any

from engine.proof.attestation import Attestation, DecodeAttestation, PrefillAttestation


@dataclass(frozen=True)
class Signed:
    """Implements `billing.receipts.receipt.Journaled`; all are signed by one key unless said."""

    attestation: Attestation
    key_id: str = "test"

    @property
    def document(self) -> str:
        payload = self.attestation.to_payload()
        return json.dumps({"key_id": self.key_id, "payload": payload, "signature": ""})

    @property
    def certificate(self) -> str:
        return f"of {self.key_id}"


def prefill(request_id: object, attempt: int = 0, **fields: Any) -> PrefillAttestation:
    """A computed prompt of 10 tokens without a hit, by the worker p1, unless ``fields`` say otherwise."""
    said = {
        "stage": "prefill",
        "worker": "p1",
        "namespace": "n",
        "prompt_tokens": 10,
        "hit_tokens": 0,
        "owed_tokens": 0,
        "hit_device_tokens": 0,
        "block_tokens": 64,
        "retention_class": "chat",
        "promised_until": None,
        "prompt_commitment": "",
        "cached_prefix_commitment": "",
        "memo": "",
        "attested_at_ns": 1,
        **fields,
    }
    tiers = {"hit_store_tokens": said["hit_tokens"] - said["hit_device_tokens"]}
    return PrefillAttestation(request_id=str(request_id), attempt=attempt, **{**said, **tiers})


def decode(
    request_id: object, attempt: int, output_from: int, output_to: int, **fields: Any
) -> DecodeAttestation:
    """Output of the worker d1 that ended with an end token, unless ``fields`` say otherwise."""
    said = {
        "stage": "decode",
        "worker": "d1",
        "namespace": "n",
        "prompt_tokens": 10,
        "handoff_tokens": 0,
        "ended": "stop",
        "memo": "",
        "attested_at_ns": 1,
        **fields,
    }
    ends = {"output_from": output_from, "output_to": output_to}
    return DecodeAttestation(request_id=str(request_id), attempt=attempt, **ends, **said)
