"""The memo: what workers repeat in all that they attest, so that a line of a journal can be settled alone."""

import json
from dataclasses import dataclass
from typing import Self

from billing.usage import Tier


@dataclass(frozen=True, slots=True)
class Memo:
    """Who pays, for what, and by which price row (the one in force at admission) and tier."""

    tenant_id: str
    key_id: str
    model: str
    traffic_class: str
    price_row_id: str
    tier: Tier = "standard"

    def to_text(self) -> str:
        """A JSON object; it names the tier where that is not the standard one."""
        return json.dumps(
            {
                "tenant": self.tenant_id,
                "key": self.key_id,
                "model": self.model,
                "class": self.traffic_class,
                "price_row": self.price_row_id,
                **({} if self.tier == "standard" else {"tier": self.tier}),
            }
        )

    @classmethod
    def read(cls, text: str) -> Self | None:
        """What `to_text` wrote; None for anything else."""
        try:
            memo = json.loads(text)
        except (ValueError, RecursionError):
            return None
        match {"tier": "standard", **memo} if isinstance(memo, dict) else memo:
            case {
                "tenant": str(tenant_id),
                "key": str(key_id),
                "model": str(model),
                "class": str(traffic_class),
                "price_row": str(price_row_id),
                "tier": "standard" | "flex" | "batch" as tier,
                **others,
            } if not others:
                return cls(tenant_id, key_id, model, traffic_class, price_row_id, tier)
            case _:
                return None
