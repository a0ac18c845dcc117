"""vLLM workers as parts: spec file, key, certificate, command, readiness over the socket."""

import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from admin import clock, settings
from admin.settings import WorkerSettings, write_private
from admin.stack.model import Model
from admin.stack.process import Command
from engine.proof.certificate import DeploymentKey, WorkerCertificate
from engine.proof.signed import ProofInvalid, private_key, private_pem, public_bytes
from engine.shapes.render import worker_command
from engine.shapes.shape import Role, WorkerSpec
from recipe import registry


@dataclass(frozen=True, slots=True)
class Workers:
    """Where the workers of a data directory keep their files and sockets."""

    data_dir: Path
    sockets: Path
    deployment: DeploymentKey

    @property
    def folder(self) -> Path:
        """Keys, certificates and spec files."""
        return self.data_dir / "workers"

    def certify(self, roles: dict[str, Role]) -> tuple[WorkerSettings, ...]:
        """Give each worker (name -> role) a key and a certificate of the deployment, unless it has them."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.sockets.mkdir(mode=0o700, exist_ok=True)
        for name in roles:
            if not self._certified(name):
                key = Ed25519PrivateKey.generate()
                write_private(self.folder / f"{name}.pem", private_pem(key))
                issued_at_s = int(clock.now().timestamp())
                certificate = self.deployment.certify(name, key.public_key(), issued_at_s)
                write_private(self.folder / f"{name}.certificate", certificate.encode())
        return tuple(
            WorkerSettings(name, role, self.sockets / f"{name}.sock", self.folder / f"{name}.certificate")
            for name, role in roles.items()
        )

    def _certified(self, name: str) -> bool:
        try:
            text = (self.folder / f"{name}.certificate").read_text()
            certificate = WorkerCertificate.verify(text, self.deployment.public)
            key = private_key((self.folder / f"{name}.pem").read_bytes())
        except (OSError, ProofInvalid):
            return False
        same = public_bytes(certificate.public_key) == public_bytes(key.public_key())
        return same and certificate.worker == name

    def command(self, worker: WorkerSettings, model: Model, cores: tuple[int, ...] | None) -> Command:
        """Write the worker's spec and say how to start it."""
        quotas = settings.store_quotas()
        store_dir = self.data_dir / "store"
        spec = WorkerSpec(
            name=worker.name,
            role=worker.role,
            model_dir=model.folder,
            served_name=model.served_name,
            socket=worker.socket,
            store_dir=store_dir,
            journal_dir=self.folder / f"{worker.name}.journal",
            key_file=self.folder / f"{worker.name}.pem",
            certificate_file=worker.certificate_file,
            cpu_cores=cores,
            recipe_version=registry.VERSION,
            store_bytes_max=quotas.store_bytes_max,
            tenant_bytes_max=quotas.tenant_bytes_max,
        )
        store_dir.mkdir(mode=0o700, exist_ok=True)
        spec_file = self.folder / f"{worker.name}.json"
        spec.write(spec_file)
        # A socket left by a killed worker would answer nobody, but its path must be free to bind.
        worker.socket.unlink(missing_ok=True)
        rendered = worker_command(spec_file, spec)
        return Command(tuple(rendered.argv), settings.child_environment(rendered.environment))


def roles_of(prefill: int, decode: int) -> dict[str, Role]:
    """Names and roles of the workers, prefill first: ``prefill-1``, ..., ``decode-1``, ..."""
    roles: dict[str, Role] = {f"prefill-{number}": "prefill" for number in range(1, prefill + 1)}
    return roles | {f"decode-{number}": "decode" for number in range(1, decode + 1)}


def share_cores(workers: int) -> list[tuple[int, ...] | None]:
    """Divide the cores this process may use evenly, without overlap; None for all when they are too few."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) < workers:
        return [None] * workers
    bounds = [len(cores) * index // workers for index in range(workers + 1)]
    return [tuple(cores[start:end]) for start, end in pairwise(bounds)]
