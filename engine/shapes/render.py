"""From a worker's spec to the command line and environment of its process."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from engine.shapes.worker import WorkerSpec


@dataclass(frozen=True, slots=True)
class Command:
    """Arguments of a process and the variables to add to its environment. No secret is in either."""

    argv: list[str]
    environment: dict[str, str] = field(default_factory=dict)


def worker_command(spec_file: Path, spec: WorkerSpec) -> Command:
    """How to start a worker: run ``argv`` with ``environment`` added to the caller's own.

    Stop it by SIGTERM to this one process, not to its group: it finishes what is in flight within
    ``shutdown_timeout_s``. It may end with exit code 0 after a crash of its engine; restart it on any exit.
    """
    bind = "nobind" if spec.cpu_cores is None else ",".join(str(core) for core in spec.cpu_cores)
    return Command(
        argv=[sys.executable, "-m", "engine.worker.launch", str(spec_file)],
        environment={
            "VLLM_CPU_OMP_THREADS_BIND": bind,
            "OMP_NUM_THREADS": str(spec.threads if spec.cpu_cores is None else len(spec.cpu_cores)),
            # Drafts are looked up by numba, whose idle threads otherwise take seven parts of eight of a step.
            "NUMBA_NUM_THREADS": "1",
            "VLLM_LOGGING_STREAM": "ext://sys.stderr",
            "VLLM_LOGGING_LEVEL": spec.log_level,
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "TOKENIZERS_PARALLELISM": "false",
        },
    )
