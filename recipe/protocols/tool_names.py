"""Tool names that clients use and models' formats do not take: dots, slashes and colons, as MCP has them."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]*")
_JOINTS: Final = re.compile(r"[./:]")


def stand_ins(names: Iterable[str]) -> dict[str, str]:
    """Each name that is plain but for its joints, and the plain one it goes by; no two share one."""
    ordered = list(dict.fromkeys(names))
    taken = {name for name in ordered if _PLAIN.fullmatch(name)}
    found: dict[str, str] = {}
    for name in ordered:
        plain = _JOINTS.sub("_", name)
        if name in taken or not _PLAIN.fullmatch(plain):
            continue
        found[name] = next(one for one in _numbered(plain) if one not in taken)
        taken.add(found[name])
    return found


def _numbered(name: str) -> Iterator[str]:
    yield name
    number = 2
    while True:
        yield f"{name}_{number}"
        number += 1


def functions_in(wire: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every object of a chat body that names a function: tools first, then the choice, then earlier calls."""
    named = [*_items(wire.get("tools")), wire.get("tool_choice")]
    for message in _items(wire.get("messages")):
        if isinstance(message, dict):
            named += _items(message.get("tool_calls"))
    for one in named:
        function = one.get("function") if isinstance(one, dict) else None
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            yield function


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
