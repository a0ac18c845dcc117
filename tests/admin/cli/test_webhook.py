"""`kvitto webhook`: from adding one to what became of a test, with the job that sends beside it."""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from datetime import timedelta

import pytest

from admin import clock
from admin.settings import Settings
from billing.db.transaction import Database
from billing.notify.delivery import Deliveries, Reply
from gateway.vault import WEBHOOKS, Vault
from tests.admin.cli.conftest import Kvitto

URL = "https://example.com/hook"


class Answering:
    """A sender whose endpoints answer with a status."""

    def __init__(self, status: int) -> None:
        self.status = status

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        return Reply(self.status, "", timedelta(milliseconds=5))


@pytest.fixture
def job(cli_settings: Settings) -> Iterator[Answering]:
    """The delivering job in a thread of its own, as in a process of its own."""
    answering, stop = Answering(204), threading.Event()

    async def deliver() -> None:
        database = Database(cli_settings.database_url)
        vault = Vault(cli_settings.key_pepper, WEBHOOKS)
        deliveries = Deliveries(database, vault, answering, clock.now)
        while not stop.is_set():
            await deliveries.deliver_due()
            await asyncio.sleep(0.05)
        await database.close()

    thread = threading.Thread(target=asyncio.run, args=(deliver(),))
    thread.start()
    yield answering
    stop.set()
    thread.join()


def test_a_webhook_is_added_tested_rotated_and_removed(kvitto: Kvitto, job: Answering) -> None:
    assert kvitto("tenant", "create", "hooked").status == 0
    added = kvitto("webhook", "add", "hooked", URL, "--kind", "balance.low", "--json").told
    assert added["secret"].startswith("whsec_")
    (listed,) = kvitto("webhook", "list", "--tenant", "hooked", "--json").told
    assert (listed["url"], listed["kinds"], listed["state"]) == (URL, "balance.low", "enabled")
    assert "secret" not in listed
    tested = kvitto("webhook", "test", added["id"], "--json").told
    assert (tested["state"], tested["status"], tested["attempts"]) == ("delivered", 204, 1)
    (delivery,) = kvitto("webhook", "deliveries", added["id"], "--json").told
    assert delivery["notice"] == tested["notice"]
    assert kvitto("webhook", "replay", added["id"], "--notice", tested["notice"], "--json").told == {
        "deliveries": 1
    }
    assert kvitto("webhook", "replay", added["id"], "--since", "1h", "--json").told == {"deliveries": 0}
    rotated = kvitto("webhook", "rotate", added["id"], "--grace", "7d", "--json").told
    assert rotated["secret"] != added["secret"]
    assert kvitto("webhook", "remove", added["id"]).status == 0
    gone = kvitto("webhook", "deliveries", added["id"])
    assert (gone.status, "kvitto webhook list" in gone.err) == (1, True)


def test_a_test_that_is_not_taken_says_so_and_gone_disables(kvitto: Kvitto, job: Answering) -> None:
    kvitto("tenant", "create", "deaf")
    added = kvitto("webhook", "add", "deaf", URL, "--json").told
    job.status = 410
    tested = kvitto("webhook", "test", added["id"])
    assert tested.status == 1
    assert "answered 410" in tested.out
    (listed,) = kvitto("webhook", "list", "--tenant", "deaf", "--json").told
    assert listed["state"] == "disabled: it answered 410 Gone"
    assert kvitto("webhook", "enable", added["id"]).status == 0
    (listed,) = kvitto("webhook", "list", "--tenant", "deaf", "--json").told
    assert listed["state"] == "enabled"


@pytest.mark.parametrize(
    "words",
    [
        ("add", "strict", "http://example.com/"),
        ("add", "strict", "https://10.0.0.1/"),
        ("add", "strict", URL, "--kind", "everything"),
        ("replay", "whk_none"),
        ("replay", "whk_none", "--notice", "a", "--since", "1h"),
        ("rotate", "whk_none", "--grace", "long"),
    ],
)
def test_what_means_nothing_is_refused_on_the_command_line(kvitto: Kvitto, words: tuple[str, ...]) -> None:
    kvitto("tenant", "create", "strict")
    ran = kvitto("webhook", *words)
    assert ran.status in (1, 2)
    assert "Traceback" not in ran.err
