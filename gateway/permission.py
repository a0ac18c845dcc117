"""What a key's grant allows a request: addresses, scopes, models, retention class, length of the answer."""

from ipaddress import IPv6Address, ip_address
from typing import Final

from billing.tenancy.api_key import TRAFFIC_CLASSES, KeyGrant, Network, Scope, TrafficClass
from gateway.refusal import NotPermitted, TenantSuspended
from recipe.errors import ParameterInvalid
from recipe.request import Request

CLASS_HEADER: Final = "X-Traffic-Class"


def require(grant: KeyGrant, scope: Scope) -> None:
    """Let a request pass whose key has this scope; NotPermitted else.

    Raises:
        TenantSuspended: its tenant is, and what is asked for is inference.
    """
    if scope not in grant.terms.scopes:
        raise NotPermitted(f"this API key has no scope {scope!r}")
    if scope == "inference" and grant.suspended_by is not None:
        raise TenantSuspended(grant.suspended_by)


def require_model(grant: KeyGrant, model: str) -> None:
    """Let a request pass whose key may ask this public model; NotPermitted else."""
    if not may_ask(grant, model):
        raise NotPermitted(f"this API key may not ask the model {model!r}", "model")


def may_ask(grant: KeyGrant, model: str) -> bool:
    """Whether a key's list of models has this one."""
    return grant.terms.models is None or model in grant.terms.models


def traffic_class(grant: KeyGrant, header: str | None, by_looks: TrafficClass) -> TrafficClass:
    """Retention class of a request: its header's if the key allows that, else the key's, else by its looks.

    Raises:
        ParameterInvalid: the header names no class.
    """
    asked = None if header is None else header.strip().lower()
    if asked is not None and asked not in TRAFFIC_CLASSES:
        raise ParameterInvalid(CLASS_HEADER, f"'{CLASS_HEADER}' must be 'agent' or 'chat'")
    for allowed in grant.terms.traffic_classes:
        if asked == allowed:
            return allowed
    return grant.terms.traffic_class or by_looks


def max_tokens(grant: KeyGrant, request: Request, fitting: int) -> int:
    """The longest answer in tokens: what fits the model, at most what the key allows.

    Args:
        grant: the key's.
        request: what it asks for.
        fitting: what the model would give it.

    Raises:
        ParameterInvalid: it asks for more than the key allows.
    """
    cap = grant.terms.max_tokens
    if cap is None or fitting <= cap:
        return fitting
    if request.max_tokens is not None:
        param = request.max_tokens_param
        raise ParameterInvalid(param, f"'{param}' must be at most {cap} for this API key")
    return cap


def from_allowed_network(grant: KeyGrant, client: str | None) -> bool:
    """Whether a request may come from this address. None, an address unknown to us, is in no network."""
    networks = grant.terms.networks
    return networks is None or (client is not None and _within(client, networks))


def client_address(peer: str | None, forwarded: str | None, trusted: tuple[Network, ...]) -> str | None:
    """Address of the client behind proxies of ours.

    The last address of ``X-Forwarded-For`` that is no proxy of ours: what stands before it, the client may
    have written itself. Without a trusted peer the header means nothing.
    """
    if peer is None or not _within(peer, trusted):
        return peer
    client = peer
    for hop in reversed((forwarded or "").split(",")):
        client = hop.strip() or client
        if not _within(client, trusted):
            break
    return client


def _within(address: str, networks: tuple[Network, ...]) -> bool:
    try:
        read = ip_address(address)
    except ValueError:
        return False
    if isinstance(read, IPv6Address) and read.ipv4_mapped is not None:
        read = read.ipv4_mapped
    return any(read in network for network in networks)
