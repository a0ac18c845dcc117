"""What vLLM is told of a worker, by its spec."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from engine.shapes.shape import Role, WorkerSpec
from engine.worker.launch import server_arguments

IDENTITY = {"model": "0" * 64, "recipe": "1"}


def told(role: Role, **changes: Any) -> dict[str, str]:
    """Options that vLLM is given with a value, by name."""
    spec = WorkerSpec(
        name="w0",
        role=role,
        model_dir=Path("/model"),
        served_name="m",
        socket=Path("/run/w.sock"),
        store_dir=Path("/store"),
        journal_dir=Path("/journal"),
        key_file=Path("/keys/w.pem"),
        certificate_file=Path("/keys/w.certificate"),
        **changes,
    )
    arguments = server_arguments(spec, IDENTITY)
    return dict(pairwise(arguments))


def test_a_worker_that_encodes_leaves_images_and_has_no_prefix_store() -> None:
    arguments = told("encode", encoded_dir=Path("/encoded"), step_budget_s=0.1, context_tokens=2048)
    transfer = json.loads(arguments["--ec-transfer-config"])
    assert (transfer["ec_role"], transfer["ec_connector"]) == ("ec_producer", "EncodedImages")
    assert not {"--kv-transfer-config", "--additional-config", "--speculative-config"} & set(arguments)
    assert arguments["--max-model-len"] == "2048"


@pytest.mark.parametrize("role", ["prefill", "decode", "both"])
def test_whoever_computes_tokens_looks_for_images_where_they_are_left(role: Role) -> None:
    arguments = told(role, encoded_dir=Path("/encoded"))
    encoding = told("encode", encoded_dir=Path("/encoded"))
    ours, theirs = (json.loads(each["--ec-transfer-config"]) for each in (arguments, encoding))
    assert ours["ec_role"] == "ec_consumer"
    assert ours["ec_connector_extra_config"] == theirs["ec_connector_extra_config"]
    assert json.loads(arguments["--kv-transfer-config"])["kv_connector"] == "PrefixStoreConnector"
    assert "--ec-transfer-config" not in told(role)


def test_another_model_or_other_numbers_have_another_folder_of_images() -> None:
    folders = {
        json.loads(told("encode", encoded_dir=Path("/encoded"), dtype=dtype)["--ec-transfer-config"])[
            "ec_connector_extra_config"
        ]["shared_storage_path"]
        for dtype in ("auto", "float32")
    }
    assert len(folders) == 2
    assert all(IDENTITY["model"] in folder for folder in folders)
