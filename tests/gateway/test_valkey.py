"""Commands coalesced into pipelines, against a real Valkey."""

import asyncio

import pytest

from gateway.refusal import ValkeyUnavailable
from gateway.valkey import Script, Valkey

ADD = Script("return redis.call('INCRBY', KEYS[1], ARGV[1])")


async def test_commands_of_one_tick_travel_together_and_each_gets_its_own_answer(valkey: Valkey) -> None:
    before = await connections(valkey)
    answers = await asyncio.gather(*(valkey.call("ECHO", f"{number}") for number in range(1200)))
    assert answers == [f"{number}" for number in range(1200)]
    assert await connections(valkey) <= before + 2  # three pipelines of 500 commands at most


async def test_a_script_is_loaded_when_the_server_does_not_know_it(valkey: Valkey) -> None:
    await valkey.call("SCRIPT", "FLUSH")
    answers = await asyncio.gather(*(valkey.run(ADD, ("n",), (number,)) for number in (1, 2, 3)))
    assert max(answers) == 6
    assert await valkey.run(ADD, ("n",), (4,)) == 10


async def test_a_faulty_script_fails_alone_and_is_no_outage(valkey: Valkey) -> None:
    faulty = valkey.run(Script("return redis.call('NO_SUCH_COMMAND')"), (), ())
    sound = valkey.call("ECHO", "sound")
    with pytest.raises(Exception, match="Unknown") as raised:
        await faulty
    assert not isinstance(raised.value, ValkeyUnavailable)
    assert await sound == "sound"


async def test_a_cancelled_caller_does_not_disturb_the_others(valkey: Valkey) -> None:
    async def echo(word: str) -> object:
        return await valkey.call("ECHO", word)

    leaving, staying = asyncio.create_task(echo("leaving")), asyncio.create_task(echo("staying"))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying == "staying"
    with pytest.raises(asyncio.CancelledError):
        await leaving


async def test_nobody_listening_is_an_outage() -> None:
    nowhere = Valkey.connect("unix:///nonexistent/valkey.sock?password=x")
    with pytest.raises(ValkeyUnavailable):
        await nowhere.call("PING")
    await nowhere.close()


async def test_a_wrong_password_is_an_outage_and_is_not_repeated_in_the_error(valkey_url: str) -> None:
    wrong = Valkey.connect(valkey_url.partition("?")[0] + "?password=canary")
    with pytest.raises(ValkeyUnavailable) as raised:
        await wrong.call("PING")
    assert "canary" not in str(raised.value)
    await wrong.close()


async def test_a_message_reaches_those_who_listen(valkey: Valkey) -> None:
    messages = valkey.listen("news")
    assert await anext(messages) == ""
    await valkey.publish("news", "hello")
    assert await anext(messages) == "hello"
    await messages.aclose()


async def connections(valkey: Valkey) -> int:
    return str(await valkey.call("CLIENT", "LIST")).count("laddr=")
