"""Process root of a worker: a spec file becomes vLLM's API server over our connector.

``python -m engine.worker.launch SPEC``. vLLM spawns its engine core and its model worker, which import this
module again as ``__mp_main__``: that is how each of them comes to die with its parent from the first moment.
"""

import contextlib
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any, Final

from engine.shapes.shape import SpecInvalid, WorkerSpec
from engine.wire import LOGPROBS_MAX
from engine.worker.lineage import die_with_parent, lead_group
from engine.worker.pacer import PACE_CONFIG

if __name__ in ("__main__", "__mp_main__"):
    die_with_parent()

_CONNECTOR: Final = "PrefixStoreConnector"
_CONNECTOR_WITHOUT_STORE: Final = "StorelessConnector"


def server_arguments(spec: WorkerSpec, identity: dict[str, str]) -> list[str]:
    """Arguments of vLLM's API server for a worker; ``identity`` goes into the store's namespace."""
    arguments = [
        *("--model", str(spec.model_dir)),
        *("--served-model-name", spec.served_name),
        *("--uds", str(spec.socket)),
        *("--dtype", spec.dtype),
        *("--block-size", str(spec.block_tokens)),
        *("--kv-cache-memory-bytes", str(spec.kv_cache_bytes)),
        *("--max-num-batched-tokens", str(spec.batched_tokens_max)),
        *("--max-num-seqs", str(spec.sequences_max)),
        *("--distributed-executor-backend", "engine.worker.executor.InlineExecutor"),
        *("--scheduler-cls", "engine.worker.scheduler.tail_scheduler"),
        *("--middleware", "engine.worker.routes.WorkerRoutes"),
        *("--prefix-caching-hash-algo", "sha256_cbor"),
        *("--shutdown-timeout", str(spec.shutdown_timeout_s)),
        # With "auto" the first request's backend is everybody's, and ignores what it was not asked about.
        *("--structured-outputs-config", json.dumps({"backend": "xgrammar"})),
        *("--max-logprobs", str(LOGPROBS_MAX + 1)),
        # Of images that were made ready before, in each of two processes.
        *("--mm-processor-cache-gb", "0.25"),
        *("--logging-config", json.dumps({"formatter": "json", "log_level": spec.log_level})),
        "--enable-scale-out",
        "--enable-prefix-caching",
        "--enable-prompt-tokens-details",
        "--enforce-eager",
        "--disable-uvicorn-access-log",
    ]
    if spec.encoded_dir is not None:
        arguments += ["--ec-transfer-config", json.dumps(_encoded(spec, spec.encoded_dir, identity))]
    if spec.context_tokens is not None:
        arguments += ["--max-model-len", str(spec.context_tokens)]
    if spec.role == "encode":
        return arguments  # it keeps no KV cache, and draws no token
    arguments += ["--kv-transfer-config", json.dumps(_transfer(spec, identity))]
    if spec.step_budget_s is not None:
        pace = {
            "step_budget_s": spec.step_budget_s,
            "law_dir": str(spec.key_file.parent / "cost"),
            "model": identity["model"],
        }
        arguments += ["--additional-config", json.dumps({PACE_CONFIG: pace})]
    if spec.speculative is not None:
        arguments += ["--speculative-config", json.dumps(dict(spec.speculative))]
    return arguments


def _transfer(spec: WorkerSpec, identity: dict[str, str]) -> dict[str, Any]:
    return {
        "kv_connector": _CONNECTOR if spec.store_dir is not None else _CONNECTOR_WITHOUT_STORE,
        "kv_connector_module_path": "engine.worker.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "worker": spec.name,
            "store_dir": None if spec.store_dir is None else str(spec.store_dir),
            "promise": spec.promise,
            "journal_dir": str(spec.journal_dir),
            "key_file": str(spec.key_file),
            "certificate_file": str(spec.certificate_file),
            "identity": identity,
            "store_bytes_max": spec.store_bytes_max,
            "tenant_bytes_max": spec.tenant_bytes_max,
            "retention_s": dict(spec.retention_s),
        },
    }


def _encoded(spec: WorkerSpec, encoded_dir: Path, identity: dict[str, str]) -> dict[str, Any]:
    """What one model makes of an image is nothing to another, or to itself in other numbers."""
    return {
        "ec_connector": "EncodedImages",
        "ec_connector_module_path": "engine.worker.encoded",
        "ec_role": "ec_producer" if spec.role == "encode" else "ec_consumer",
        "ec_connector_extra_config": {
            "shared_storage_path": str(encoded_dir / f"{identity['model']}-{spec.dtype}")
        },
    }


def _free_socket(path: Path) -> None:
    """Remove a socket file that a killed worker has left; one that answers belongs to a living worker."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise SpecInvalid(f"{path}: another worker is listening there")


def _serve(arguments: list[str]) -> None:
    import uvloop
    from vllm.entrypoints.launchers.api_server.entry import run_server
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.logger import configure_logging_from_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    cli_env_setup()
    parsed: Any = make_arg_parser(FlexibleArgumentParser()).parse_args(arguments)
    configure_logging_from_args(parsed)
    validate_parsed_serve_args(parsed)
    uvloop.run(run_server(parsed))


def main(spec_file: Path) -> None:
    """Run one worker until it is told to stop; raises SpecInvalid."""
    spec = WorkerSpec.read(spec_file)
    lead_group()
    # Names of blocks must not depend on the seed of a caller's Python; children inherit this.
    os.unsetenv("PYTHONHASHSEED")
    _free_socket(spec.socket)
    from prometheus_client import REGISTRY

    from engine.worker import layout
    from engine.worker.metrics import WorkerMetrics
    from engine.worker.routes import Desk, WorkerRoutes

    WorkerRoutes.desk = desk = Desk.of(spec)
    REGISTRY.register(WorkerMetrics(spec.journal_dir, desk.journal, lambda: desk.draining))

    identity = {"model": layout.model_digest(spec.model_dir), "recipe": spec.recipe_version}
    _serve(server_arguments(spec, identity))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
