"""What `gateway.routes.inference` asks of a protocol: to read its bodies, and to write their answers."""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from billing.tenancy.api_key import TrafficClass
from gateway.admission.hold import Hold
from gateway.models import ServedModel
from gateway.writer import Writer
from recipe.prompt import Prompt
from recipe.request import Request

R = TypeVar("R", bound=Request)


@dataclass(frozen=True, slots=True)
class Asked(Generic[R]):
    """A body that has been read, rendered and found to fit the model."""

    request: R
    served: ServedModel
    prompt: Prompt
    max_tokens: int
    traffic_class: TrafficClass

    @property
    def ignored_params(self) -> tuple[str, ...]:
        """Parameters that had no effect, in the order of their names."""
        return tuple(sorted({*self.request.ignored_params, *self.prompt.ignored_params}))


class Surface(Protocol[R]):
    """One protocol: a file of `gateway.routes` over a file of `recipe.protocols`. Has no state."""

    @property
    def heartbeat(self) -> bytes:
        """What keeps a silent stream open; clients accept it before its first event and between any two."""

    def read(self, body: bytes) -> R:
        """Read a body.

        Raises:
            BodyMalformed, ParameterInvalid, ParameterUnsupported: it cannot be answered.
        """

    def writer(self, asked: Asked[R], hold: Hold) -> Writer:
        """A new writer of the answer to an admitted request."""

    def broken(self, error: Exception) -> bytes:
        """A frame that ends a stream which no writer has begun."""
