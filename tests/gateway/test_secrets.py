"""No key in clear in any sink: logs, answers, metrics, tables, Valkey."""

import logging

import pytest
from sqlalchemy import text

from billing.db.access import OWNER
from billing.tenancy import keys
from gateway.telemetry import log
from tests.gateway.conftest import EPOCH, House
from tests.gateway.doubles import Play

READ = {
    "string": ("GET",),
    "hash": ("HGETALL",),
    "set": ("SMEMBERS",),
    "zset": ("ZRANGE", 0, -1),
    "list": ("LRANGE", 0, -1),
    "stream": ("XRANGE", "-", "+"),
}
TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"


async def tables(house: House) -> str:
    """Every row of every table as text; binary columns in hexadecimal."""
    async with house.parts.database.transaction(OWNER) as connection:
        names = (await connection.execute(text(TABLES))).scalars().all()
        found = [
            row
            for name in names
            for row in (await connection.execute(text(f"SELECT t::text FROM {name} t"))).scalars()  # noqa: S608 - our own tables
        ]
    return "\n".join(found)


async def valkey_contents(house: House) -> str:
    """Every key with its value."""
    call = house.parts.valkey.call
    found = []
    for name in await call("KEYS", "*"):
        read = READ[await call("TYPE", name)]
        found.append((name, await call(read[0], name, *read[1:])))
    return repr(found)


async def test_a_canary_key_is_in_no_sink(house: House, caplog: pytest.LogCaptureFixture) -> None:
    """BerriAI/litellm#30670, BerriAI/litellm#18731, BerriAI/litellm#31620: errors, audit, access logs."""
    caplog.set_level(logging.DEBUG)
    canary = house.key
    other = keys.secret_of(b"c" * 32)  # well-formed and unknown
    said = []
    house.engine.play = Play(prefill=RuntimeError("the engine broke"))
    for headers in (
        {"authorization": f"Bearer {canary}"},
        {"authorization": f"Bearer {canary}x"},
        {"authorization": f"Bearer {other}"},
        {"authorization": f"Basic {canary}"},
        {"authorization": canary},
    ):
        for path in ("/v1/chat/completions", f"/v1/models/{canary}", f"/nope/{canary}"):
            body = {"model": canary, "messages": [{"role": "user", "content": "Hi"}]}
            async with house.session.post(house.url + path, json=body, headers=headers) as answer:
                said.append(repr(answer.headers))
                said.append(await answer.text())
    async with house.chat() as answer:
        assert answer.status == 500
        said.append(await answer.text())
    house.engine.play = Play()
    async with house.chat(stream=True) as answer:
        said.append(await answer.text())
    await house.settled()
    await house.parts.tenancy.revoke_key(house.key_id, EPOCH)
    async with house.session.get(f"{house.url}/metrics") as answer:
        said.append(await answer.text())
    # Nobody keeps an access log (`admin.run.gateway`); pytest listens to it all the same.
    logged = [caplog.handler.format(record) for record in caplog.records if record.name != "uvicorn.access"]
    sinks = "\n".join([*said, *logged, await tables(house), await valkey_contents(house)])
    assert house.key_id in sinks
    assert "the engine broke" in sinks
    for secret in (canary, other):
        assert secret not in sinks
        assert secret[len(keys.PREFIX) :] not in sinks


async def test_a_key_that_reaches_the_log_by_mistake_is_masked_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = keys.secret_of(b"m" * 32, keys.MANAGEMENT_PREFIX)
    log.error("internal_error", path=f"/v1/{secret}", exc_info=ValueError(f"cannot parse {secret}!"))
    assert "cannot parse kv_mgmt_" in caplog.text
    assert secret not in caplog.text
