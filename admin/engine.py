"""The engine as processes of a stack reach it: options out of settings, in one place for all of them."""

import secrets

from admin import clock
from admin.settings import Settings
from engine.api import EngineOptions, ScriptRunner, WorkerAddress
from engine.proof.ring import DeploymentRing


def engine_options(known: Settings, shared: ScriptRunner | None = None) -> EngineOptions:
    """Make the options of one process.

    Args:
        known: the stack's.
        shared: where gateways meet; None for a process that sends no requests to workers.
    """
    return EngineOptions(
        workers=tuple(WorkerAddress(worker.name, worker.role, worker.socket) for worker in known.workers),
        salt_secret=known.salt_secret,
        deployment=DeploymentRing.read(known.deployment_ring),
        store_dir=known.store_dir,
        call_secret=known.worker_secret,
        now_s=lambda: int(clock.now().timestamp()),
        first_token=known.first_token,
        shared=shared,
        gateway=secrets.token_hex(8),
    )
