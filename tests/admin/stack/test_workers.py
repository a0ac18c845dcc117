"""A worker's spec as the stack writes it."""

from dataclasses import replace
from pathlib import Path

import pytest

from admin.stack import secrets
from admin.stack.model import Model
from admin.stack.workers import Workers
from engine.shapes.shape import Shape
from engine.shapes.worker import WorkerSpec
from tests.deployment import signer

SHAPE = Shape.split(1, 1, (0, 1))


def spec_of(tmp_path: Path, shape: Shape = SHAPE) -> WorkerSpec:
    housing = Workers(tmp_path, tmp_path / "w", signer(), shape)
    worker = housing.certify()[0]
    housing.command(worker, Model(tmp_path, "m"), shape.seats[0].cores)
    return WorkerSpec.read(housing.folder / f"{worker.name}.json")


def test_quotas_of_the_environment_reach_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVITTO_STORE_BYTES_MAX", "40000000")
    monkeypatch.setenv("KVITTO_TENANT_BYTES_MAX", "10000000")
    spec = spec_of(tmp_path)
    assert (spec.store_bytes_max, spec.tenant_bytes_max) == (40_000_000, 10_000_000)


def test_a_worker_without_quotas_has_its_role_cores_and_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KVITTO_STORE_BYTES_MAX", "KVITTO_TENANT_BYTES_MAX"):
        monkeypatch.delenv(name, raising=False)
    spec = spec_of(tmp_path)
    assert (spec.store_bytes_max, spec.tenant_bytes_max, spec.step_budget_s) == (None, None, None)
    assert (spec.name, spec.role, spec.cpu_cores) == ("prefill-1", "prefill", (0,))
    assert (spec.store_dir, spec.promise) == (tmp_path / "store", True)
    assert spec.journal_dir == tmp_path / "workers" / "prefill-1.journal"


def test_a_worker_reads_what_its_callers_must_know_where_the_secret_lies(tmp_path: Path) -> None:
    known = secrets.load_or_create(tmp_path)
    file = spec_of(tmp_path).call_secret_file
    assert file is not None
    assert bytes.fromhex(file.read_text()) == known.call


def test_what_a_shape_switches_off_is_off_in_its_workers(tmp_path: Path) -> None:
    shape = replace(Shape.mono(1, (0, 1)), store=False, promise=False, step_budget_s=0.1, speculate=4)
    spec = spec_of(tmp_path, shape)
    assert (spec.name, spec.role, spec.cpu_cores) == ("mono-1", "both", (0, 1))
    assert (spec.store_dir, spec.promise, spec.step_budget_s) == (None, False, 0.1)
    assert spec.speculative is not None
    assert (spec.speculative["method"], spec.speculative["num_speculative_tokens"]) == ("ngram", 4)
    assert not (tmp_path / "store").exists()


def test_workers_find_what_an_encode_worker_leaves(tmp_path: Path) -> None:
    assert spec_of(tmp_path).encoded_dir is None
    housing = Workers(tmp_path, tmp_path / "w", signer(), SHAPE.encoding(1))
    for worker in housing.certify():
        housing.command(worker, Model(tmp_path, "m"), None)
    specs = [WorkerSpec.read(file) for file in sorted(housing.folder.glob("*.json"))]
    assert {(spec.role, spec.encoded_dir) for spec in specs} == {
        (role, tmp_path / "encoded") for role in ("encode", "prefill", "decode")
    }
    assert (tmp_path / "encoded").stat().st_mode & 0o777 == 0o700
