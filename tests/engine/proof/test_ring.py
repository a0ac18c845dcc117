import base64
import json

import pytest

from engine.proof import signed
from engine.proof.certificate import DeploymentKey
from engine.proof.ring import DeploymentRing
from engine.proof.signed import PayloadInvalid, SignatureInvalid

FIRST, SECOND, THIRD = (DeploymentKey.generate() for _ in range(3))


def rotated_twice() -> DeploymentRing:
    ring = DeploymentRing.of(FIRST.public).rotated(FIRST.private, SECOND.public, 100)
    return ring.rotated(SECOND.private, THIRD.public, 200)


def test_who_trusts_the_first_key_knows_all_and_when_each_signs() -> None:
    ring = DeploymentRing.read(rotated_twice().to_text())
    assert ring == rotated_twice()
    assert [(key.since_s, key.until_s) for key in ring.keys] == [(0, 100), (100, 200), (200, None)]
    payload, key = ring.verify(signed.sign(SECOND.private, {"said": 1}))
    assert (payload, key.id) == ({"said": 1}, signed.key_id_of(SECOND.public))
    key.check(100)
    for dated_s in (99, 200):
        with pytest.raises(SignatureInvalid):
            key.check(dated_s)


def test_only_the_present_key_hands_over_and_to_no_key_that_was_in_use() -> None:
    ring = rotated_twice()
    stranger = DeploymentKey.generate()
    with pytest.raises(SignatureInvalid):
        ring.rotated(SECOND.private, stranger.public, 300)
    with pytest.raises(PayloadInvalid):
        ring.rotated(THIRD.private, FIRST.public, 300)
    with pytest.raises(PayloadInvalid):
        ring.rotated(THIRD.private, stranger.public, 200)
    with pytest.raises(SignatureInvalid):
        ring.verify(signed.sign(stranger.private, {}))


def test_a_ring_with_a_step_left_out_changed_or_of_another_anchor_is_refused() -> None:
    written = json.loads(rotated_twice().to_text())
    other = base64.b64encode(signed.public_bytes(SECOND.public)).decode()
    later = json.loads(json.dumps(written["rotations"]))
    later[0]["payload"]["rotated_at_s"] = 50
    for change in (
        {"rotations": written["rotations"][1:]},
        {"rotations": written["rotations"][::-1]},
        {"rotations": later},
        {"anchor": other},
        {"anchor": "?"},
        {"kind": "kvitto.key-ring.v2"},
        {"rotations": {}},
    ):
        with pytest.raises((PayloadInvalid, SignatureInvalid)):
            DeploymentRing.read(json.dumps({**written, **change}))
    for text in ("", "[]", "[" * 100_000):
        with pytest.raises(PayloadInvalid):
            DeploymentRing.read(text)
