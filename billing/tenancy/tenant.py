"""A tenant: who pays, in one immutable currency."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from billing.money import ZERO, Femto

BillingMode = Literal["prepaid", "postpaid"]


@dataclass(frozen=True, slots=True)
class Tenant:
    """``id`` is opaque and random, ``name`` unique. ``credit_limit`` is what a postpaid tenant may owe."""

    id: str
    name: str
    currency: str
    created_at: datetime
    billing_mode: BillingMode = "prepaid"
    credit_limit: Femto = ZERO
