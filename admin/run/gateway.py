"""The process of the gateway: parts wired from settings, served on the supervisor's socket."""

import asyncio
import socket
import sys

import uvicorn
from litestar import Litestar

from admin import settings
from admin.engine import engine_options
from admin.settings import Settings, SettingsMissing
from billing.db.transaction import Database
from billing.ledger.service import Ledger
from billing.payments.inbox import Inbox
from billing.payments.invoices import StripeInvoices
from billing.pricing.service import Prices
from billing.settlement.batch import Settlement
from billing.tenancy.api_key import network_of
from billing.tenancy.service import Tenancy
from engine.api import Engine
from gateway.app import Parts, build
from gateway.options import FetchOptions, GatewayOptions
from gateway.telemetry import log, log_to_stderr
from gateway.valkey import Valkey
from recipe import registry


def app_of(known: Settings) -> Litestar:
    """Wire the gateway of a stack.

    Raises:
        SettingsMissing: the model is not there yet.
        RecipeError: the model's folder cannot be read.
    """
    if known.model_dir is None:
        raise SettingsMissing("the stack has not brought its model yet")
    database = Database(known.database_url)
    valkey = Valkey.connect(known.valkey_url)
    return build(
        Parts(
            options=GatewayOptions(
                valkey_lost=known.valkey_lost,
                replicas=known.gateway_replicas,
                trusted_proxies=tuple(map(network_of, known.trusted_proxies)),
                fetching=FetchOptions(urls=known.image_urls),
                private_destinations=tuple(map(network_of, known.private_destinations)),
            ),
            database=database,
            tenancy=Tenancy(database, known.key_pepper),
            prices=Prices(database),
            ledger=Ledger(database),
            settlement=Settlement(database),
            valkey=valkey,
            engine=Engine(engine_options(known, shared=valkey)),
            recipe=registry.load(
                known.model_dir, known.served_name, memo_bytes_max=known.encode_memo_bytes_max
            ),
            answer_secret=known.key_pepper,
            deployment_ring=known.deployment_ring,
            exports_folder=known.exports_folder,
            inbox=None
            if known.stripe.webhook_secret is None
            else Inbox(database, known.stripe.webhook_secret, StripeInvoices()),
        )
    )


async def serve(known: Settings) -> None:
    """Serve until SIGTERM or SIGINT; running requests are finished first, as long as the options allow."""
    sockets = [socket.socket(fileno=listener) for listener in settings.listener_fds()] or None
    log.info("gateway_serves", address=known.base_url, model=known.served_name)
    await uvicorn.Server(configuration(known, app_of(known))).serve(sockets=sockets)


def configuration(known: Settings, app: Litestar) -> uvicorn.Config:
    """How the application is served: no access log, which would hold paths, and no headers believed."""
    return uvicorn.Config(
        app,
        host=known.host,
        port=known.port,
        http="httptools",
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # uvicorn would believe any local client's; the gateway knows whose to believe
        server_header=False,
        timeout_graceful_shutdown=int(GatewayOptions().drain_s),
    )


def main() -> int:
    """Entry point; returns the exit status."""
    log_to_stderr()
    with asyncio.Runner(loop_factory=_loop) as runner:
        runner.run(serve(settings.from_environment()))
    return 0


def _loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # where it has no wheel
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


if __name__ == "__main__":
    sys.exit(main())
