"""A worker's spec as the stack writes it."""

from pathlib import Path

import pytest

from admin.stack.model import Model
from admin.stack.workers import Workers
from engine.proof.certificate import DeploymentKey
from engine.shapes.shape import WorkerSpec


def spec_of(tmp_path: Path) -> WorkerSpec:
    housing = Workers(tmp_path, tmp_path / "w", DeploymentKey.generate())
    (worker,) = housing.certify({"prefill-1": "prefill"})
    housing.command(worker, Model(tmp_path, "m"), (0,))
    return WorkerSpec.read(housing.folder / "prefill-1.json")


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
    assert spec.store_dir == tmp_path / "store"
