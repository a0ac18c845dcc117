"""How the gateway's process serves."""

from pathlib import Path

from litestar import Litestar

from admin.run.gateway import configuration
from admin.settings import Settings
from tests.deployment import RING


def test_no_access_log_is_kept_and_no_client_may_lend_itself_an_address() -> None:
    """BerriAI/litellm#31620 for the log; uvicorn by itself believes X-Forwarded-For of local clients."""
    settings = Settings(
        data_dir=Path(),
        database_url="",
        valkey_url="",
        host="127.0.0.1",
        port=8080,
        model_dir=None,
        served_name="model",
        workers=(),
        key_pepper=b"",
        salt_secret=b"",
        worker_secret=b"",
        deployment_ring=RING,
    )
    serving = configuration(settings, Litestar([]))
    assert not serving.access_log
    assert not serving.proxy_headers
