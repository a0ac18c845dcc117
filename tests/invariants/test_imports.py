"""The import contracts of `.importlinter` refuse what they must: each planted import is found and named."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("admin", "billing", "engine", "gateway", "recipe")

# importer (a file) and what it must not import
PLANTED = (
    ("engine/cluster/worker_client.py", "redis"),
    ("engine/cluster/router.py", "billing.pricing.rating"),
    ("engine/shapes/render.py", "vllm"),
    ("engine/shapes/render.py", "recipe.registry"),
    ("engine/shapes/shape.py", "engine.worker.launch"),
    ("engine/worker/connector.py", "engine.cluster.dispatch"),
    ("engine/proof/attestation.py", "engine.wire"),
    ("engine/store/directory.py", "engine.worker.connector"),
    ("engine/cost.py", "engine.policy"),
    ("engine/cost.py", "torch"),
    ("engine/policy.py", "engine.shapes.shape"),
    ("engine/policy.py", "vllm"),
    ("gateway/pump.py", "engine.policy"),
    ("billing/settlement/batch.py", "redis"),
    ("billing/usage.py", "engine.api"),
    ("billing/pricing/rating.py", "billing.settlement.event"),
    ("billing/tenancy/service.py", "sqlalchemy"),
    ("billing/money.py", "billing.usage"),
    ("billing/queue.py", "billing.ledger.service"),
    ("admin/run/jobs.py", "procrastinate"),
    ("recipe/usage.py", "billing.usage"),
    ("recipe/protocols/chat.py", "litestar"),
    ("gateway/pump.py", "engine.cluster.dispatch"),
    ("gateway/pump.py", "engine.store.directory"),
    ("gateway/pump.py", "admin.settings"),
    ("gateway/settle.py", "billing.settlement.repository"),
    ("gateway/settle.py", "sqlalchemy"),
    ("gateway/app.py", "torch"),
    ("gateway/app.py", "billing.payments.stripe"),
    ("billing/payments/inbox.py", "stripe"),
    ("billing/ledger/posting.py", "billing.payments.payment"),
    ("admin/stack/postgres.py", "asyncpg"),
    ("admin/stack/workers.py", "engine.worker.launch"),
    ("admin/cli/usage.py", "redis"),
    ("admin/verify/receipt.py", "billing.db.transaction"),
    ("admin/verify/bundle.py", "gateway.refusal"),
    ("admin/verify/trust.py", "aiohttp"),
    ("billing/reports/export/service.py", "pyarrow"),
)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the linter says of a copy of the house with every forbidden import planted at once."""
    copy = tmp_path_factory.mktemp("planted")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".importlinter", copy)
    for importer, imported in PLANTED:
        file = copy / importer
        file.write_text(f"{file.read_text(encoding='utf-8')}\nimport {imported}\n", encoding="utf-8")
    return lint(copy)


def lint(house: Path) -> str:
    command = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [command, "--no-cache"],
        cwd=house,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(house)},
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(("importer", "imported"), PLANTED, ids=[f"{a} {b}" for a, b in PLANTED])
def test_a_forbidden_import_is_refused_by_name(report: str, importer: str, imported: str) -> None:
    module = importer.removesuffix(".py").replace("/", ".")
    assert f"{module} -> {imported}" in report or f"{module} -> {imported.partition('.')[0]} " in report
