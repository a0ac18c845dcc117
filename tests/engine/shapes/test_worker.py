import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.shapes.render import worker_command
from engine.shapes.worker import SpecInvalid, WorkerSpec, default_cores

SPEC = WorkerSpec(
    name="prefill-0",
    role="prefill",
    model_dir=Path("/model"),
    served_name="m",
    socket=Path("/run/p.sock"),
    store_dir=Path("/store"),
    journal_dir=Path("/journal"),
    key_file=Path("/keys/p.pem"),
    certificate_file=Path("/keys/p.certificate"),
    cpu_cores=(0, 1),
)


def test_a_spec_survives_its_file(tmp_path: Path) -> None:
    drafting = {"method": "ngram", "num_speculative_tokens": 4}
    other = dataclasses.replace(
        SPEC,
        cpu_cores=None,
        context_tokens=2048,
        step_budget_s=0.1,
        speculative=drafting,
        encoded_dir=Path("/encoded"),
    )
    for spec in (SPEC, other):
        spec.write(tmp_path / "spec.json")
        assert WorkerSpec.read(tmp_path / "spec.json") == spec


@pytest.mark.parametrize(
    "change",
    [
        {"role": "king"},
        {"encoded_dir": None, "role": "encode"},
        {"threads": 0},
        {"shutdown_timeout_s": 0},
        {"store_bytes_max": -1},
        {"retention_s": {"batch": 0}},
        {"tenant_bytes_max": -1},
        {"step_budget_s": 0},
        {"step_budget_s": float("nan")},
        {"socket": "/" + "s" * 120},
        {"unknown": 1},
    ],
)
def test_a_file_that_describes_no_worker_is_refused_by_name(tmp_path: Path, change: dict[str, Any]) -> None:
    file = tmp_path / "spec.json"
    SPEC.write(file)
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(SpecInvalid, match=next(iter(change))):
        WorkerSpec.read(file)


def test_a_missing_or_broken_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecInvalid):
        WorkerSpec.read(tmp_path / "none.json")
    (tmp_path / "half.json").write_text('{"name": "p')
    with pytest.raises(SpecInvalid):
        WorkerSpec.read(tmp_path / "half.json")


def test_a_command_binds_threads_to_the_workers_cores() -> None:
    command = worker_command(Path("/spec.json"), SPEC)
    assert command.argv == [sys.executable, "-m", "engine.worker.launch", "/spec.json"]
    assert command.environment["VLLM_CPU_OMP_THREADS_BIND"] == "0,1"
    assert command.environment["OMP_NUM_THREADS"] == "2"


def test_a_command_without_cores_leaves_threads_unbound() -> None:
    environment = worker_command(Path("/s"), dataclasses.replace(SPEC, cpu_cores=None, threads=3)).environment
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert environment["OMP_NUM_THREADS"] == "3"


def test_prefill_and_decode_share_a_machine_without_sharing_cores() -> None:
    assert (default_cores("prefill", 2), default_cores("decode", 2)) == ((0,), (1,))
    assert (default_cores("prefill", 5), default_cores("decode", 5)) == ((0, 1), (2, 3, 4))
    assert default_cores("prefill", 1) is None
    assert default_cores("both", 8) is None


def test_numba_gets_one_thread_whatever_the_cores() -> None:
    """vLLM looks drafts up with it: with two threads a step took 600 ms, with one 88 (two busy cores)."""
    assert worker_command(Path("/s.json"), SPEC).environment["NUMBA_NUM_THREADS"] == "1"
