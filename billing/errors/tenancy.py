"""What is wrong with a tenant, and what belongs to one."""

from dataclasses import dataclass

from billing.errors.base import BillingError, Faulty, Placed


@dataclass(eq=False)
class TenantMissing(BillingError):
    """No tenant has this name or id."""

    name_or_id: str

    def __str__(self) -> str:
        return f"no tenant {self.name_or_id!r}"


@dataclass(eq=False)
class TenantExists(BillingError):
    """The name is taken."""

    name: str

    def __str__(self) -> str:
        return f"tenant {self.name!r} exists already"


@dataclass(eq=False)
class ErasureRefused(BillingError):
    """A tenant cannot be erased as it is now."""

    tenant_id: str
    reason: str

    def __str__(self) -> str:
        return f"tenant {self.tenant_id} cannot be erased: {self.reason}"


class TenancyInvalid(Placed):
    """A tenant, project, key, user or webhook that means nothing; ``field`` says which part of it."""


@dataclass(eq=False)
class ProjectMissing(BillingError):
    """No project of this tenant has this name or id."""

    name_or_id: str

    def __str__(self) -> str:
        return f"no project {self.name_or_id!r}"


@dataclass(eq=False)
class ProjectExists(BillingError):
    """The tenant has a project of this name."""

    name: str

    def __str__(self) -> str:
        return f"project {self.name!r} exists already"


@dataclass(eq=False)
class KeyMissing(BillingError):
    """No API key has this id."""

    key_id: str

    def __str__(self) -> str:
        return f"no API key {self.key_id!r}"


@dataclass(eq=False)
class UserMissing(BillingError):
    """No user has this id."""

    user_id: str

    def __str__(self) -> str:
        return f"no user {self.user_id!r}"


@dataclass(eq=False)
class UserExists(BillingError):
    """The tenant has a user of this e-mail address."""

    email: str

    def __str__(self) -> str:
        return f"user {self.email!r} exists already"


class LimitInvalid(Faulty):
    """A limit or budget that means nothing."""

    what = "no limit"


class IntervalInvalid(Faulty):
    """A stretch of time or a zone that means nothing."""

    what = "no stretch of time"


@dataclass(eq=False)
class ReportInvalid(BillingError):
    """A report or an export that means nothing, or is more than is told at once; ``field`` says where."""

    field: str
    reason: str

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


@dataclass(eq=False)
class ExportMissing(BillingError):
    """No export has this id, or its file is not kept any more."""

    export_id: str

    def __str__(self) -> str:
        return f"no export {self.export_id!r}, or not any more"


@dataclass(eq=False)
class ExportsBusy(BillingError):
    """Too many exports of this tenant wait already."""

    waiting_max: int

    def __str__(self) -> str:
        return f"{self.waiting_max} exports are being made already: wait for one of them"


@dataclass(eq=False)
class LimitMissing(BillingError):
    """No limit or budget has this id."""

    limit_id: str

    def __str__(self) -> str:
        return f"no limit or budget {self.limit_id!r}"


@dataclass(eq=False)
class WebhookMissing(BillingError):
    """No webhook has this id."""

    endpoint_id: str

    def __str__(self) -> str:
        return f"no webhook {self.endpoint_id!r}"


@dataclass(eq=False)
class NoticeMissing(BillingError):
    """No notice of this tenant has this id."""

    notice_id: str

    def __str__(self) -> str:
        return f"no notice {self.notice_id!r}"


@dataclass(eq=False)
class AliasInvalid(BillingError):
    """An alias that means nothing."""

    pattern: str
    reason: str

    def __str__(self) -> str:
        return f"alias {self.pattern!r}: {self.reason}"


@dataclass(eq=False)
class AliasMissing(BillingError):
    """No alias has this pattern."""

    pattern: str

    def __str__(self) -> str:
        return f"no alias {self.pattern!r}"
