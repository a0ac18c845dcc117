"""The root of the tree, and shapes that leaves share."""

from dataclasses import dataclass
from typing import ClassVar


class BillingError(Exception):
    """Root of the tree; never raised itself."""


@dataclass(eq=False)
class Faulty(BillingError):
    """Those that say ``what`` is wrong, and why; never raised itself."""

    what: ClassVar[str]
    reason: str

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}"


@dataclass(eq=False)
class Placed(BillingError):
    """Those that say at which ``field``, or part, something is wrong, and why; never raised itself."""

    field: str
    reason: str

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"
