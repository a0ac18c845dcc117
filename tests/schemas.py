"""Random JSON Schemas of every kind that is served, bounded so that an answer to one is short."""

import random
from typing import Any

_WORDS = (
    "name",
    "age",
    "city",
    "tags",
    "kind",
    "size",
    "note",
    "unit",
    "next step",
    "größe",
    'say "so"',
    "a/b",
)
_PATTERNS = (
    r"^[A-Z]{2,3}-\d{1,4}$",
    r"(yes|no|maybe)",
    r"^\+?[1-9]\d{2,8}$",
    r"[a-z]{2,9}(-[a-z]{2,9})?[.!]",
)
_FORMATS = ("date", "time", "ipv4", "uuid")


def random_schema(chance: random.Random, depth: int = 3) -> dict[str, Any]:
    """A schema of nested objects, arrays, alternatives and leaves."""
    makers = [_object] * 4 + [_array] * 2 + [_any_of, _tuple, _one_of] if depth else []
    if depth < 3:
        makers += [_string, _string, _integer, _number, _enum, _boolean, _nullable]
    return chance.choice(makers)(chance, depth - 1)


def _object(chance: random.Random, depth: int) -> dict[str, Any]:
    names = chance.sample(_WORDS, chance.randint(1, 4))
    required = [name for name in names if chance.random() < 0.7]
    schema: dict[str, Any] = {
        "type": "object",
        "title": "an annotation",
        "properties": {name: random_schema(chance, max(depth, 0)) for name in names},
    }
    if required:
        schema["required"] = required
    if chance.random() < 0.5:
        schema["additionalProperties"] = False
    return schema


def _array(chance: random.Random, depth: int) -> dict[str, Any]:
    least = chance.randint(0, 2)
    items = random_schema(chance, max(depth, 0))
    return {"type": "array", "items": items, "minItems": least, "maxItems": least + chance.randint(0, 2)}


def _tuple(chance: random.Random, depth: int) -> dict[str, Any]:
    first = [random_schema(chance, 0) for _ in range(chance.randint(1, 3))]
    return {"type": "array", "prefixItems": first, "items": False, "minItems": len(first)}


def _any_of(chance: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [random_schema(chance, max(depth, 0)) for _ in range(chance.randint(1, 3))]}


def _one_of(chance: random.Random, depth: int) -> dict[str, Any]:
    """Objects told apart by a constant, behind references."""
    kinds = chance.sample(_WORDS, chance.randint(1, 3))
    branches = [
        {
            "type": "object",
            "properties": {"kind": {"const": kind}, "value": random_schema(chance, 0)},
            "required": ["kind", "value"],
        }
        for kind in kinds
    ]
    return {"oneOf": branches}


def _string(chance: random.Random, _depth: int) -> dict[str, Any]:
    match chance.randrange(4):
        case 0:
            return {"type": "string", "pattern": chance.choice(_PATTERNS)}
        case 1:
            return {"type": "string", "format": chance.choice(_FORMATS)}
        case _:
            least = chance.choice((0, 1, 4))
            return {"type": "string", "minLength": least, "maxLength": least + chance.choice((4, 8))}


def _integer(chance: random.Random, _depth: int) -> dict[str, Any]:
    low = chance.randint(-500, 500)
    bounds = {"minimum": low} if chance.random() < 0.5 else {"exclusiveMinimum": low - 0.5}
    return {"type": "integer", **bounds, "maximum": low + chance.choice((0, 3, 70, 1000))}


def _number(chance: random.Random, _depth: int) -> dict[str, Any]:
    low = chance.choice((-100.5, -0.25, 0, 3, 12.75))
    return {"type": "number", "minimum": low, "exclusiveMaximum": low + chance.choice((0.5, 2, 1000))}


def _enum(chance: random.Random, _depth: int) -> dict[str, Any]:
    values: list[Any] = ["red", "dark green", 3, -1.5, None, True, {"a": [1]}, 'q"\n\\']
    return {"enum": chance.sample(values, chance.randint(1, 5))}


def _boolean(_chance: random.Random, _depth: int) -> dict[str, Any]:
    return {"type": "boolean"}


def _nullable(chance: random.Random, _depth: int) -> dict[str, Any]:
    return {"type": [chance.choice(("integer", "boolean")), "null"], "maximum": 9, "minimum": 0}
