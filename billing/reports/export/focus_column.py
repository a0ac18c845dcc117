"""The columns of a FOCUS 1.2 file (FinOps Open Cost and Usage Specification), and which may be null.

All that 1.2 calls mandatory, and the conditional ones whose condition holds here. Those that release 1.0
demanded of everybody (regions, commitments) are there too, and null: importers and the public validator,
which ends at 1.0, look for them. Not there: the columns of prices in another currency than is billed, of
capacity reservations and of quantities of commitments, whose conditions do not hold.

FOCUS's come first, in the order of the alphabet, ours behind them. The tokens of a row stand in the column
``x_…_tokens`` of its bucket; the others are 0, so that each can be added up.
"""

from typing import Final

from billing.reports.export.column import Column
from billing.reports.usage_total import TOKENS

VERSION: Final = "1.2"
CUSTOM: Final = (
    Column("x_bucket", "id"),
    *(Column(f"x_{name}_tokens", "integer") for name in TOKENS),
    Column("x_list_price_row_id", "name"),
    Column("x_list_price_window", "name"),
    Column("x_price_row_id", "name"),
    Column("x_price_window", "name"),
    Column("x_tier", "id"),
    Column("x_traffic_class", "id"),
)
FOCUS: Final = (
    Column("AvailabilityZone", "id", nullable=True),
    Column("BilledCost", "amount"),
    Column("BillingAccountId", "id"),
    Column("BillingAccountName", "name"),
    Column("BillingAccountType", "id"),
    Column("BillingCurrency", "id"),
    Column("BillingPeriodEnd", "instant"),
    Column("BillingPeriodStart", "instant"),
    Column("ChargeCategory", "id"),
    Column("ChargeClass", "id", nullable=True),
    Column("ChargeDescription", "name"),
    Column("ChargeFrequency", "id"),
    Column("ChargePeriodEnd", "instant"),
    Column("ChargePeriodStart", "instant"),
    Column("CommitmentDiscountCategory", "id", nullable=True),
    Column("CommitmentDiscountId", "id", nullable=True),
    Column("CommitmentDiscountName", "id", nullable=True),
    Column("CommitmentDiscountStatus", "id", nullable=True),
    Column("CommitmentDiscountType", "id", nullable=True),
    Column("ConsumedQuantity", "quantity"),
    Column("ConsumedUnit", "id"),
    Column("ContractedCost", "amount"),
    Column("ContractedUnitPrice", "quantity"),
    Column("EffectiveCost", "amount"),
    Column("InvoiceId", "id", nullable=True),
    Column("InvoiceIssuerName", "name"),
    Column("ListCost", "amount"),
    Column("ListUnitPrice", "quantity"),
    Column("PricingCategory", "id"),
    Column("PricingQuantity", "quantity"),
    Column("PricingUnit", "id"),
    Column("ProviderName", "name"),
    Column("PublisherName", "name"),
    Column("RegionId", "id", nullable=True),
    Column("RegionName", "id", nullable=True),
    Column("ResourceId", "id"),
    Column("ResourceName", "name"),
    Column("ResourceType", "id"),
    Column("ServiceCategory", "id"),
    Column("ServiceName", "name"),
    Column("ServiceSubcategory", "id"),
    Column("SkuId", "name"),
    Column("SkuMeter", "id"),
    Column("SkuPriceDetails", "id"),
    Column("SkuPriceId", "name"),
    Column("SubAccountId", "id"),
    Column("SubAccountName", "name"),
    Column("SubAccountType", "id"),
    Column("Tags", "id"),
    *CUSTOM,
)
