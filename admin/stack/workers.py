"""vLLM workers as parts: spec file, key, certificate, command, readiness over the socket."""

import os
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from admin import clock, settings
from admin.settings import WorkerSettings, write_private
from admin.stack.model import Model
from admin.stack.process import Command
from admin.stack.secrets import call_secret_file
from engine.proof.certificate import DeploymentKey, WorkerCertificate
from engine.proof.ring import RingSigner
from engine.proof.signed import ProofInvalid, private_key, private_pem, public_bytes
from engine.shapes.render import worker_command
from engine.shapes.shape import Shape
from engine.shapes.worker import WorkerSpec
from recipe import registry


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers of a shape, and where a data directory keeps their files and sockets."""

    data_dir: Path
    sockets: Path
    deployment: RingSigner
    shape: Shape

    @property
    def folder(self) -> Path:
        """Keys, certificates, journals and spec files."""
        return self.data_dir / "workers"

    @property
    def store_dir(self) -> Path | None:
        """The prefix store, None in a shape that has none."""
        return self.data_dir / "store" if self.shape.store else None

    @property
    def encoded_dir(self) -> Path | None:
        """What workers that encode leave for the others; None in a shape that has none."""
        return self.data_dir / "encoded" if self.shape.encodes else None

    def certify(self) -> tuple[WorkerSettings, ...]:
        """Give each worker a key and a certificate of the deployment's present key, unless it has them."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.sockets.mkdir(mode=0o700, exist_ok=True)
        for seat in self.shape.seats:
            if not self._certified(seat.name):
                key = Ed25519PrivateKey.generate()
                write_private(self.folder / f"{seat.name}.pem", private_pem(key))
                issued_at_s = self.deployment.dated(int(clock.now().timestamp()))
                issuer = DeploymentKey(self.deployment.private)
                certificate = issuer.certify(seat.name, key.public_key(), issued_at_s)
                write_private(self.folder / f"{seat.name}.certificate", certificate.encode())
        return tuple(
            WorkerSettings(
                seat.name,
                seat.role,
                self.sockets / f"{seat.name}.sock",
                self.folder / f"{seat.name}.certificate",
            )
            for seat in self.shape.seats
        )

    def _certified(self, name: str) -> bool:
        try:
            text = (self.folder / f"{name}.certificate").read_text()
            certificate = WorkerCertificate.verify(text, self.deployment.ring.present.public)
            key = private_key((self.folder / f"{name}.pem").read_bytes())
        except (OSError, ProofInvalid):
            return False
        same = public_bytes(certificate.public_key) == public_bytes(key.public_key())
        return same and certificate.worker == name

    def command(self, worker: WorkerSettings, model: Model, cores: tuple[int, ...] | None) -> Command:
        """Write the worker's spec and say how to start it."""
        quotas = settings.store_quotas()
        spec = WorkerSpec(
            name=worker.name,
            role=worker.role,
            model_dir=model.folder,
            served_name=model.served_name,
            socket=worker.socket,
            store_dir=self.store_dir,
            journal_dir=self.folder / f"{worker.name}.journal",
            key_file=self.folder / f"{worker.name}.pem",
            certificate_file=worker.certificate_file,
            call_secret_file=call_secret_file(self.data_dir),
            promise=self.shape.promise,
            cpu_cores=cores,
            step_budget_s=self.shape.step_budget_s,
            recipe_version=registry.VERSION,
            store_bytes_max=quotas.store_bytes_max,
            tenant_bytes_max=quotas.tenant_bytes_max,
            speculative=self.shape.speculative,
            encoded_dir=self.encoded_dir,
        )
        for folder in (self.store_dir, self.encoded_dir, spec.journal_dir):
            if folder is not None:
                folder.mkdir(mode=0o700, exist_ok=True)
        spec_file = self.folder / f"{worker.name}.json"
        spec.write(spec_file)
        # A socket left by a killed worker would answer nobody, but its path must be free to bind.
        worker.socket.unlink(missing_ok=True)
        rendered = worker_command(spec_file, spec)
        return Command(tuple(rendered.argv), settings.child_environment(rendered.environment))


def own_cores() -> list[int]:
    """Numbers of the cores that this process may use; none where the system does not tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
