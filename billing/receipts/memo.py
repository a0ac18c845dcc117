"""The memo: what workers repeat in all that they attest, so that a line of a journal can be settled alone."""

import json
import re
from dataclasses import dataclass
from typing import Final, Self

from billing.usage import Tier

HEX: Final = re.compile("([0-9a-f]{2})+")


@dataclass(frozen=True, slots=True)
class Memo:
    """Who pays, for what, and by which price row (the one in force at admission) and tier.

    ``answers`` are the digests, in hex, of the idempotency key that the request answers and of its body.
    """

    tenant_id: str
    key_id: str
    model: str
    traffic_class: str
    price_row_id: str
    tier: Tier = "standard"
    answers: tuple[str, str] | None = None

    def to_text(self) -> str:
        """A JSON object; it names a tier that is not the standard one, and a key where there is one."""
        return json.dumps(
            {
                "tenant": self.tenant_id,
                "key": self.key_id,
                "model": self.model,
                "class": self.traffic_class,
                "price_row": self.price_row_id,
                **({} if self.tier == "standard" else {"tier": self.tier}),
                **({} if self.answers is None else {"answers": self.answers}),
            }
        )

    @classmethod
    def read(cls, text: str) -> Self | None:
        """What `to_text` wrote; None for anything else."""
        try:
            memo = json.loads(text)
        except (ValueError, RecursionError):
            return None
        match {"tier": "standard", "answers": None, **memo} if isinstance(memo, dict) else memo:
            case {
                "tenant": str(tenant_id),
                "key": str(key_id),
                "model": str(model),
                "class": str(traffic_class),
                "price_row": str(price_row_id),
                "tier": "standard" | "flex" | "batch" as tier,
                "answers": None | [str(), str()] as answers,
                **others,
            } if not others and _digests(answers):
                key = None if answers is None else (answers[0], answers[1])
                return cls(tenant_id, key_id, model, traffic_class, price_row_id, tier, key)
            case _:
                return None


def _digests(texts: list[str] | None) -> bool:
    return all(HEX.fullmatch(text) for text in texts or ())
