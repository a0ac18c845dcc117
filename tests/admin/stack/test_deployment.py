"""The deployment's key is rotated: who signs then, what stays valid, and what dies in between."""

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from admin import clock
from admin.deployment import signer
from admin.settings import Settings, SettingsInvalid
from admin.stack import secrets, workers
from admin.stack.errors import SecretsBroken
from billing.receipts.head import TreeHead
from engine.proof.certificate import DeploymentKey, WorkerCertificate
from engine.proof.signed import SignatureInvalid, key_id_of
from engine.shapes.shape import Shape
from tests.admin.stack.test_places import settings_of

AT_S = 1_800_000_000


def settings_in(data_dir: Path) -> Settings:
    """As a stack tells its parts."""
    ring = secrets.load_or_create(data_dir).deployment.ring
    key_file = secrets.deployment_key_file(data_dir)
    return replace(settings_of(data_dir), deployment_ring=ring.to_text(), deployment_key_file=key_file)


def private_keys(data_dir: Path) -> list[str]:
    """Ids of all private keys that lie in its secrets."""
    files = (data_dir / "secrets").glob("*.pem")
    return [key_id_of(DeploymentKey.from_pem(file.read_bytes()).public) for file in files]


def test_a_rotated_key_is_deleted_and_the_next_one_signs(tmp_path: Path) -> None:
    before = secrets.load_or_create(tmp_path).deployment
    ring = secrets.rotate_deployment_key(tmp_path, AT_S)
    after = secrets.load_or_create(tmp_path).deployment
    assert after.ring == ring == secrets.deployment_ring(tmp_path)
    assert [key.id for key in ring.keys] == [before.ring.present.id, after.ring.present.id]
    assert ring.anchor == before.ring.anchor
    assert private_keys(tmp_path) == [after.ring.present.id]
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in (tmp_path / "secrets").iterdir())
    head = TreeHead(1, bytes(32), AT_S)
    assert TreeHead.verify(head.sign(after.private), ring) == head
    with pytest.raises(SignatureInvalid):
        TreeHead.verify(head.sign(before.private), ring)


def test_workers_are_certified_anew_and_their_certificates_of_before_stay_valid(tmp_path: Path) -> None:
    shape = Shape.mono(1, ())
    (worker,) = workers.Workers(
        tmp_path, tmp_path / "w", secrets.load_or_create(tmp_path).deployment, shape
    ).certify()
    before = worker.certificate_file.read_text()
    ring = secrets.rotate_deployment_key(tmp_path, int(clock.now().timestamp()) + 1)
    housing = workers.Workers(tmp_path, tmp_path / "w", secrets.load_or_create(tmp_path).deployment, shape)
    housing.certify()
    after = worker.certificate_file.read_text()
    old, new = (WorkerCertificate.verify_by_ring(text, ring) for text in (before, after))
    assert (old.worker, new.worker) == ("mono-1", "mono-1")
    assert old.key_id != new.key_id
    assert new.issued_at_s >= ring.present.since_s, "also in the second of the rotation"
    housing.certify()
    assert worker.certificate_file.read_text() == after


@pytest.mark.parametrize("step", ["the key is written", "the ring too", "all is done"])
def test_a_rotation_that_is_interrupted_is_finished_or_undone(tmp_path: Path, step: str) -> None:
    first = secrets.load_or_create(tmp_path).deployment
    folder = tmp_path / "secrets"
    old_key, old_ring = ((folder / name).read_bytes() for name in (secrets.KEY, secrets.RING))
    ring = secrets.rotate_deployment_key(tmp_path, AT_S)
    if step != "all is done":
        (folder / secrets.KEY).rename(folder / secrets.FOLLOWING_KEY)
        (folder / secrets.KEY).write_bytes(old_key)
    if step == "the key is written":
        (folder / secrets.RING).write_bytes(old_ring)
    found = secrets.load_or_create(tmp_path).deployment
    assert found.ring == (first.ring if step == "the key is written" else ring)
    assert private_keys(tmp_path) == [found.ring.present.id]


def test_a_deployment_of_before_there_were_rings_gets_one(tmp_path: Path) -> None:
    first = secrets.load_or_create(tmp_path).deployment
    (tmp_path / "secrets" / secrets.RING).unlink()
    assert secrets.deployment_ring(tmp_path) == first.ring
    assert secrets.load_or_create(tmp_path).deployment.ring == first.ring
    assert (tmp_path / "secrets" / secrets.RING).exists()


def test_a_key_that_is_not_the_rings_is_an_error(tmp_path: Path) -> None:
    secrets.load_or_create(tmp_path)
    (tmp_path / "secrets" / secrets.KEY).write_bytes(DeploymentKey.generate().to_pem())
    with pytest.raises(SecretsBroken, match="not the key that signs now"):
        secrets.load_or_create(tmp_path)
    with pytest.raises(SecretsBroken):
        secrets.rotate_deployment_key(tmp_path, AT_S)
    with pytest.raises(SecretsBroken):
        secrets.deployment_ring(tmp_path / "nowhere")


def test_who_signs_reads_the_private_key_from_a_file_that_nobody_else_reads(tmp_path: Path) -> None:
    known = settings_in(tmp_path)
    assert signer(known).ring == secrets.deployment_ring(tmp_path)
    file = secrets.deployment_key_file(tmp_path)
    file.chmod(0o640)
    with pytest.raises(SettingsInvalid, match="0600"):
        signer(known)
    file.chmod(0o600)
    secrets.rotate_deployment_key(tmp_path, AT_S)
    with pytest.raises(SettingsInvalid, match="not the key that signs now"):
        signer(known)
    with pytest.raises(SettingsInvalid, match="nothing signs here"):
        signer(replace(known, deployment_key_file=None))
