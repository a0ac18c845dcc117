"""JSON Schemas that a grammar backend enforces in full, within bounds of what compiling them costs.

xgrammar 0.2.8 ignores what it does not know, siblings of ``$ref``, ``enum`` and ``anyOf`` too, so this
reads a schema by what is known to be enforced and refuses the rest by name and place. What passes is
written anew: without annotations, each node with one type, each reference to a definition of its own.
Answers may be held to less than the schema allows, never to more: keys in the schema's order, no key or
item that it does not name (unless it says so), a pattern for the whole string, no escapes in a string of
bounded length. (In such a string xgrammar lets raw control characters pass, which are no JSON:
`engine.worker.grammar` masks them.)

Bounds come from measurements (two cores, 49,152 tokens): a string length costs up to 1.7 s to compile, each
above 128 that much again; 500 optional properties 0.6 s; a pattern of 128 wide characters 4.3 s.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Final
from urllib.parse import unquote

from recipe import regex

BYTES_MAX: Final = 256 * 1024
WRITTEN_BYTES_MAX: Final = 64 * 1024
DEPTH_MAX: Final = 16
PROPERTIES_MAX: Final = 500
ENUM_VALUES_MAX: Final = 1000
BRANCHES_MAX: Final = 128
DEFINITIONS_MAX: Final = 128
COUNT_MAX: Final = 100_000
# Distinct string lengths up to 128 share work and cost memory by their sum; those above share nothing.
LENGTH_SHORT: Final = 128
LENGTHS_SHORT_SUM_MAX: Final = 2048
LENGTHS_LONG_MAX: Final = 3
PATTERNS_MAX: Final = 16
PATTERNS_EXPANDED_MAX: Final = 128
COUNTED_PROPERTIES_MAX: Final = 64

FORMATS: Final = frozenset(
    {"email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid"}
    | {"uri", "uri-reference", "uri-template"}
)
_KEYWORDS: Final = {
    "object": ("properties", "required", "additionalProperties", "minProperties", "maxProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    "integer": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    "boolean": (),
    "null": (),
}
_TYPED: Final = frozenset(name for names in _KEYWORDS.values() for name in names)
_COMPOUND: Final = ("$ref", "allOf", "anyOf", "oneOf", "enum", "const")
_REFUSED: Final = frozenset(
    {"not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies"}
    | {"patternProperties", "propertyNames", "unevaluatedProperties", "unevaluatedItems", "additionalItems"}
    | {"contains", "minContains", "maxContains", "uniqueItems", "multipleOf"}
    | {"$dynamicRef", "$recursiveRef", "contentSchema"}
)
# Values with which such a keyword asks for nothing.
_IDLE: Final[Mapping[str, tuple[Any, ...]]] = {
    "uniqueItems": (False,),
    "unevaluatedProperties": (False, True),
    "unevaluatedItems": (True,),
    "additionalItems": (True,),
    "propertyNames": (True, {}, {"type": "string"}),
    "patternProperties": ({},),
    "dependentRequired": ({},),
}

Schema = dict[str, Any] | bool


class SchemaRefused(ValueError):
    """A schema that is not served; ``pointer`` is the JSON Pointer of the place, ``""`` the whole.

    ``unsupported``: it is a schema, but asks for what is not enforced here.
    """

    def __init__(self, pointer: str, what: str, *, unsupported: bool = False) -> None:
        super().__init__(f"{what} at {pointer or '/'}")
        self.pointer = pointer
        self.unsupported = unsupported


@dataclass(slots=True)
class Budget:
    """What schemas may still cost that are enforced in one grammar."""

    bytes_left: int = WRITTEN_BYTES_MAX
    properties: int = 0
    enum_values: int = 0
    branches: int = 0
    lengths: set[tuple[int, int | None]] = field(default_factory=set)
    patterns: dict[str, int] = field(default_factory=dict)

    def count(self, name: str, amount: int, most: int, pointer: str) -> None:
        """Take some of a bound; SchemaRefused beyond."""
        total = getattr(self, name) + amount
        setattr(self, name, total)
        if total > most:
            raise SchemaRefused(pointer, f"more than {most} {name.replace('_', ' ')} in all")

    def length(self, least: int, most: int | None, pointer: str) -> None:
        """Take the work for strings of a length; SchemaRefused beyond."""
        self.lengths.add((least, most))
        longest = [max(least, most or 0) for least, most in self.lengths]
        if sum(length > LENGTH_SHORT for length in longest) > LENGTHS_LONG_MAX:
            what = f"more than {LENGTHS_LONG_MAX} different string lengths above {LENGTH_SHORT}"
            raise SchemaRefused(pointer, what)
        if sum(length for length in longest if length <= LENGTH_SHORT) > LENGTHS_SHORT_SUM_MAX:
            what = f"different string lengths that add up to more than {LENGTHS_SHORT_SUM_MAX}"
            raise SchemaRefused(pointer, what)

    def pattern(self, pattern: str, pointer: str) -> None:
        """Take the work for a pattern; SchemaRefused for one that is not served, or beyond."""
        try:
            self.patterns[pattern] = regex.check(pattern, in_json=True).expanded
        except regex.RegexRefused as error:
            raise SchemaRefused(pointer, f"'pattern': {error}", unsupported=True) from None
        if len(self.patterns) > PATTERNS_MAX or sum(self.patterns.values()) > PATTERNS_EXPANDED_MAX:
            what = f"more than {PATTERNS_MAX} patterns, or of more than {PATTERNS_EXPANDED_MAX} characters"
            raise SchemaRefused(pointer, what)


def enforced(document: Any, budget: Budget | None = None) -> Schema:
    """Write a schema anew so that all of it is enforced.

    Args:
        document: a JSON value, the schema.
        budget: shared by schemas that come into one grammar.

    Raises:
        SchemaRefused: it is no schema, passes a bound, or asks for what is not enforced.
    """
    budget = budget or Budget()
    try:
        size = len(json.dumps(document))
    except (ValueError, TypeError, RecursionError):
        raise SchemaRefused("", "what is no JSON, or nested too deeply") from None
    if size > BYTES_MAX:
        raise SchemaRefused("", f"more than {BYTES_MAX} bytes")
    schema = _Writer(document, budget).write()
    budget.bytes_left -= len(json.dumps(schema))
    if budget.bytes_left < 0:
        raise SchemaRefused("", f"more than {WRITTEN_BYTES_MAX} bytes without its annotations")
    return schema


class _Writer:
    """Walks one document, and each definition that is referred to once."""

    def __init__(self, document: Any, budget: Budget) -> None:
        self._document = document
        self._budget = budget
        self._names: dict[str, str] = {}
        self._definitions: dict[str, Schema] = {}
        self._exclusive: list[tuple[str, list[Schema]]] = []

    def write(self) -> Schema:
        schema = self._node(self._document, "", 0)
        while len(self._definitions) < len(self._names):
            pointer, name = list(self._names.items())[len(self._definitions)]
            self._definitions[name] = self._node(self._found(pointer), pointer, 0)
        for pointer in self._names:
            self._refuse_circle(pointer)
        for pointer, branches in self._exclusive:
            if not all(self._disjoint(one, other, 0) for one, other in combinations(branches, 2)):
                raise SchemaRefused(
                    pointer,
                    "'oneOf' with branches that one value may match together (use 'anyOf', or give them"
                    " different types or a required property with different constants)",
                    unsupported=True,
                )
        if isinstance(schema, dict) and self._definitions:
            return {"$defs": self._definitions, **schema}
        return schema

    def _node(self, node: Any, pointer: str, depth: int) -> Schema:
        if node is True or node == {}:
            return {}
        if node is False:
            raise SchemaRefused(pointer, "'false', which no value matches", unsupported=True)
        if not isinstance(node, dict):
            raise SchemaRefused(pointer, "no schema: neither an object nor a boolean")
        if depth > DEPTH_MAX:
            raise SchemaRefused(pointer, f"nesting deeper than {DEPTH_MAX}")
        for name in node.keys() & _REFUSED:
            if node[name] not in _IDLE.get(name, ()):
                raise SchemaRefused(pointer, f"'{name}', which is not enforced here,", unsupported=True)
        compound = [name for name in _COMPOUND if name in node]
        if not compound:
            return self._typed(node, pointer, depth)
        beside = [*compound[1:], *(name for name in node if name in _TYPED)]
        if "type" in node and compound[0] not in ("enum", "const"):
            beside.append("type")
        if beside:
            what = f"'{beside[0]}' beside '{compound[0]}', which would not be enforced together,"
            raise SchemaRefused(pointer, what, unsupported=True)
        return self._compound(compound[0], node, pointer, depth)

    def _compound(self, name: str, node: dict[str, Any], pointer: str, depth: int) -> Schema:
        if name == "$ref":
            return {"$ref": f"#/$defs/{self._name(node['$ref'], pointer)}"}
        if name in ("enum", "const"):
            return self._values(node, pointer)
        branches = node[name]
        if not isinstance(branches, list) or not branches:
            raise SchemaRefused(pointer, f"'{name}' that is no list, or empty,")
        if name == "allOf" and len(branches) > 1:
            what = "'allOf' of more than one schema, which is not enforced here,"
            raise SchemaRefused(pointer, what, unsupported=True)
        self._budget.count("branches", len(branches), BRANCHES_MAX, pointer)
        written = [
            self._node(branch, f"{pointer}/{name}/{place}", depth + 1)
            for place, branch in enumerate(branches)
        ]
        if name == "oneOf":
            self._exclusive.append((pointer, written))
        return written[0] if len(written) == 1 else {"anyOf": written}

    def _values(self, node: dict[str, Any], pointer: str) -> Schema:
        values = [node["const"]] if "const" in node else node["enum"]
        if not isinstance(values, list) or not values:
            raise SchemaRefused(pointer, "'enum' that is no list, or empty,")
        self._budget.count("enum_values", len(values), ENUM_VALUES_MAX, pointer)
        types = self._types(node, pointer) if "type" in node else tuple(_KEYWORDS)
        for value in values:
            if not any(_is_of(value, name) for name in types):
                raise SchemaRefused(pointer, "a value of 'enum' or 'const' that is not of its 'type'")
            _refuse_numbers(value, pointer)
        return {"enum": values}

    def _typed(self, node: dict[str, Any], pointer: str, depth: int) -> Schema:
        if "type" in node:
            types = self._types(node, pointer)
        else:
            sorts = {
                name for name, words in _KEYWORDS.items() if name != "integer" and node.keys() & set(words)
            }
            if len(sorts) > 1:
                what = f"keywords for {' and '.join(sorted(sorts))} without a 'type'"
                raise SchemaRefused(pointer, what, unsupported=True)
            types = tuple(sorts)
        if not types:
            return {}
        self._budget.count("branches", len(types) - 1, BRANCHES_MAX, pointer)
        writers = {"object": self._object, "array": self._array, "string": self._string}
        written: list[Schema] = []
        for name in types:
            if name in writers:
                written.append({"type": name, **writers[name](node, pointer, depth)})
            else:
                written.append({"type": name, **_number(node, name, pointer)})
        return written[0] if len(written) == 1 else {"anyOf": written}

    def _types(self, node: dict[str, Any], pointer: str) -> tuple[str, ...]:
        types = node["type"] if isinstance(node["type"], list) else [node["type"]]
        for name in types:
            if not isinstance(name, str) or name not in _KEYWORDS:
                raise SchemaRefused(pointer, "a 'type' that is none of JSON's")
        if not types or len(set(types)) < len(types):
            raise SchemaRefused(pointer, "a 'type' that is empty, or names one twice,")
        return tuple(name for name in types if name != "integer" or "number" not in types)

    def _object(self, node: dict[str, Any], pointer: str, depth: int) -> dict[str, Any]:
        properties, required = node.get("properties", {}), node.get("required", [])
        if not isinstance(properties, dict):
            raise SchemaRefused(pointer, "'properties' that are no object")
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise SchemaRefused(pointer, "'required' that is no list of names")
        self._budget.count("properties", len(properties), PROPERTIES_MAX, pointer)
        written = {
            name: self._node(each, f"{pointer}/properties/{_escaped(name)}", depth + 1)
            for name, each in properties.items()
        }
        more = node.get("additionalProperties", "properties" not in node)
        if more is not False:
            more = self._node(more, f"{pointer}/additionalProperties", depth + 1)
        for name in dict.fromkeys(required):
            if name not in written:
                if node.get("additionalProperties") is False:
                    raise SchemaRefused(pointer, f"'required' {name[:80]!r}, which is no property,")
                self._budget.count("properties", 1, PROPERTIES_MAX, pointer)
                written[name] = {} if more is False else more
        bounds = _bounds(node, "minProperties", "maxProperties", pointer)
        if bounds.get("minProperties", 0) > 1 and more is not False:
            what = "'minProperties' above 1 beside keys that are free, which is not enforced here,"
            raise SchemaRefused(pointer, what, unsupported=True)
        if bounds and len(written) > COUNTED_PROPERTIES_MAX:
            what = f"'minProperties' or 'maxProperties' of more than {COUNTED_PROPERTIES_MAX} properties"
            raise SchemaRefused(pointer, what)
        if bounds.get("minProperties", 0) > len(written) and more is False:
            raise SchemaRefused(pointer, "'minProperties' above the number of properties")
        named: dict[str, Any] = {"properties": written} if written or more is False else {}
        sure: dict[str, Any] = {"required": list(dict.fromkeys(required))} if required else {}
        return {**named, **sure, "additionalProperties": more, **bounds}

    def _array(self, node: dict[str, Any], pointer: str, depth: int) -> dict[str, Any]:
        first, items = node.get("prefixItems"), node.get("items", True)
        bounds = _bounds(node, "minItems", "maxItems", pointer)
        if isinstance(items, list) or not (first is None or isinstance(first, list)):
            raise SchemaRefused(pointer, "'items' as a list (say 'prefixItems')", unsupported=True)
        if first is None:
            if items is False:
                raise SchemaRefused(pointer, "'items' that no value matches", unsupported=True)
            return {"items": self._node(items, f"{pointer}/items", depth + 1), **bounds}
        self._budget.count("branches", len(first), BRANCHES_MAX, pointer)
        written = [
            self._node(each, f"{pointer}/prefixItems/{place}", depth + 1) for place, each in enumerate(first)
        ]
        more = items if items is False else self._node(items, f"{pointer}/items", depth + 1)
        if more is False and bounds.get("minItems", 0) > len(written):
            raise SchemaRefused(pointer, "'minItems' above the number of items")
        return {"prefixItems": written, "items": more, **bounds}

    def _string(self, node: dict[str, Any], pointer: str, _depth: int) -> dict[str, Any]:
        bounds = _bounds(node, "minLength", "maxLength", pointer)
        rules: dict[str, Any] = {name: node[name] for name in ("pattern", "format") if name in node}
        if not all(isinstance(rule, str) for rule in rules.values()):
            raise SchemaRefused(pointer, "'pattern' or 'format' that is no string")
        if len(rules) > 1 or (rules and bounds):
            what = " and ".join(f"'{name}'" for name in [*rules, *bounds])
            raise SchemaRefused(pointer, f"{what} together, which is not enforced here,", unsupported=True)
        if "format" in rules and rules["format"] not in FORMATS:
            what = f"the format {rules['format'][:80]!r}, which is not enforced here,"
            raise SchemaRefused(pointer, what, unsupported=True)
        if "pattern" in rules:
            self._budget.pattern(rules["pattern"], pointer)
        if bounds:
            self._budget.length(bounds.get("minLength", 0), bounds.get("maxLength"), pointer)
        return {**rules, **bounds}

    def _name(self, reference: Any, pointer: str) -> str:
        """The definition that a reference names."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            what = "'$ref' to something outside of the schema, or to an anchor,"
            raise SchemaRefused(pointer, what, unsupported=True)
        target = unquote(reference[1:])
        self._found(target, pointer)
        if target not in self._names and len(self._names) == DEFINITIONS_MAX:
            raise SchemaRefused(pointer, f"'$ref' to more than {DEFINITIONS_MAX} places")
        return self._names.setdefault(target, f"d{len(self._names)}")

    def _found(self, target: str, pointer: str = "") -> Any:
        found = self._document
        for step in target.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and name in found:
                found = found[name]
            elif isinstance(found, list) and name.isascii() and name.isdigit() and int(name) < len(found):
                found = found[int(name)]
            else:
                raise SchemaRefused(pointer, f"'$ref' to {target[:80]!r}, which is not there,")
        return found

    def _refuse_circle(self, pointer: str) -> None:
        """Refuse a definition that is itself, with nothing in between."""
        seen: set[str] = set()
        ahead = self._immediate(self._definitions[self._names[pointer]])
        while ahead:
            name = ahead.pop()
            if name == self._names[pointer]:
                raise SchemaRefused(pointer, "a definition that refers to nothing but itself")
            if name not in seen:
                seen.add(name)
                ahead += self._immediate(self._definitions[name])

    def _immediate(self, schema: Schema) -> list[str]:
        if not isinstance(schema, dict):
            return []
        if "$ref" in schema:
            return [schema["$ref"].rpartition("/")[2]]
        return [name for branch in schema.get("anyOf", ()) for name in self._immediate(branch)]

    def _disjoint(self, one: Schema, other: Schema, depth: int) -> bool:
        """Whether surely no value matches both, as far as types, constants and required ones tell."""
        one, other = self._resolved(one), self._resolved(other)
        if depth > 4 or not one or not other:
            return False
        for some, rest in ((one, other), (other, one)):
            if "anyOf" in some:
                return all(self._disjoint(branch, rest, depth + 1) for branch in some["anyOf"])
        for some, rest in ((one, other), (other, one)):
            if "enum" in some:
                return not any(_may_be(value, rest) for value in some["enum"])
        if {one["type"], other["type"]} == {"integer", "number"}:
            return False
        if one["type"] != other["type"]:
            return True
        common = set(one.get("required", ())) & set(other.get("required", ()))
        return any(
            self._disjoint(one["properties"][name], other["properties"][name], depth + 1) for name in common
        )

    def _resolved(self, schema: Schema) -> dict[str, Any]:
        while isinstance(schema, dict) and "$ref" in schema:
            schema = self._definitions[schema["$ref"].rpartition("/")[2]]
        return schema if isinstance(schema, dict) else {}


def _bounds(node: Mapping[str, Any], least: str, most: str, pointer: str) -> dict[str, int]:
    """The bounds of a length that a node sets."""
    bounds = {}
    for name in (least, most):
        if name in node:
            bound = node[name]
            if isinstance(bound, bool) or not isinstance(bound, int | float) or bound != int(bound):
                raise SchemaRefused(pointer, f"'{name}' that is no whole number")
            if not 0 <= bound <= COUNT_MAX:
                raise SchemaRefused(pointer, f"'{name}' that is not between 0 and {COUNT_MAX}")
            bounds[name] = int(bound)
    if bounds.get(least, 0) > bounds.get(most, COUNT_MAX):
        raise SchemaRefused(pointer, f"'{least}' above '{most}'")
    return bounds


def _number(node: Mapping[str, Any], name: str, pointer: str) -> dict[str, int | float]:
    """The bounds of a number that a node sets; of an integer as whole numbers, both included."""
    for keyword in _KEYWORDS[name]:
        if keyword in node:
            bound = node[keyword]
            if isinstance(bound, bool) or not isinstance(bound, int | float):
                raise SchemaRefused(pointer, f"'{keyword}' that is no number", unsupported=True)
            _refuse_numbers(bound, pointer)
    lows = [(node["minimum"], False)] if "minimum" in node else []
    lows += [(node["exclusiveMinimum"], True)] if "exclusiveMinimum" in node else []
    highs = [(node["maximum"], False)] if "maximum" in node else []
    highs += [(node["exclusiveMaximum"], True)] if "exclusiveMaximum" in node else []
    bounds: dict[str, int | float] = {}
    if name == "integer":
        if lows:
            bounds["minimum"] = max(math.floor(low) + 1 if out else math.ceil(low) for low, out in lows)
        if highs:
            bounds["maximum"] = min(math.ceil(high) - 1 if out else math.floor(high) for high, out in highs)
        empty = bounds.get("minimum", -math.inf) > bounds.get("maximum", math.inf)
    else:
        low, high = (
            max(lows, default=(-math.inf, False)),
            min(highs, key=_tightest, default=(math.inf, False)),
        )
        bounds |= {"exclusiveMinimum" if low[1] else "minimum": low[0]} if lows else {}
        bounds |= {"exclusiveMaximum" if high[1] else "maximum": high[0]} if highs else {}
        empty = low[0] > high[0] or (low[0] == high[0] and (low[1] or high[1]))
    if empty:
        raise SchemaRefused(pointer, "bounds between which no number lies")
    return bounds


def _tightest(high: tuple[float, bool]) -> tuple[float, bool]:
    return high[0], not high[1]


def _refuse_numbers(value: Any, pointer: str) -> None:
    """Refuse numbers of which a backend in C++ knows no exact form."""
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            _refuse_numbers(each, pointer)
    elif isinstance(value, int | float) and not abs(value) < 2**53:
        raise SchemaRefused(pointer, "a number of 2^53 or more")


def _is_of(value: Any, name: str) -> bool:
    """Whether a JSON value is of a type of JSON Schema."""
    match value:
        case None:
            return name == "null"
        case bool():
            return name == "boolean"
        case int() | float():
            return name == "number" or (name == "integer" and value == int(value))
        case str():
            return name == "string"
    return name == ("array" if isinstance(value, list) else "object")


def _may_be(value: Any, schema: Mapping[str, Any]) -> bool:
    if "enum" in schema:
        return value in schema["enum"]
    return _is_of(value, schema["type"])


def _escaped(name: str) -> str:
    """A step of a JSON Pointer, shortened where a client's key is endless."""
    return name[:80].replace("~", "~0").replace("/", "~1")
