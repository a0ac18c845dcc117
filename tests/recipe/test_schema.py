"""Which JSON Schemas are served, and what is said of the rest."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe import schema
from recipe.schema import SchemaRefused, enforced

TEXT = {"type": "string"}
KEYWORDS = [
    *("type", "properties", "required", "items", "prefixItems", "anyOf", "oneOf", "allOf", "enum", "const"),
    *("$ref", "$defs", "minLength", "maxLength", "pattern", "format", "minimum", "exclusiveMaximum"),
    *("minProperties", "additionalProperties", "not"),
]


def of(properties: int, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{at}": TEXT for at in range(properties)}, **more}


def lengths(longest: range) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {f"p{most}": {**TEXT, "maxLength": most} for most in longest},
    }


@pytest.mark.parametrize(
    ("document", "pointer", "what"),
    [
        ({"type": "object", "properties": {"a/b": {"not": {}}}}, "/properties/a~1b", "'not'"),
        ({"type": "array", "items": {"type": "integer", "multipleOf": 5}}, "/items", "'multipleOf'"),
        ({"type": "array", "uniqueItems": True}, "", "'uniqueItems'"),
        ({"type": "array", "contains": {}}, "", "'contains'"),
        ({"type": "array", "items": [TEXT]}, "", "prefixItems"),
        ({"if": {}, "then": {}}, "", "'(if|then)'"),
        ({"type": "object", "patternProperties": {"^a": {}}}, "", "'patternProperties'"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "", "'dependentRequired'"),
        ({"allOf": [{}, TEXT]}, "", "'allOf' of more than one"),
        ({**of(1), "anyOf": [{"required": ["p0"]}]}, "", "'properties' beside 'anyOf'"),
        ({"$ref": "#/$defs/a", "type": "string", "$defs": {"a": TEXT}}, "", "'type' beside '\\$ref'"),
        ({"enum": ["a"], "maxLength": 3}, "", "'maxLength' beside 'enum'"),
        ({"$ref": "https://example.org/schema"}, "", "outside"),
        ({"$ref": "#anchor"}, "", "anchor"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "", "'oneOf'"),
        ({"oneOf": [of(1), of(2)]}, "", "'oneOf'"),
        (
            {"anyOf": [TEXT, {**TEXT, "pattern": "a", "maxLength": 3}]},
            "/anyOf/1",
            "'pattern' and 'maxLength'",
        ),
        ({**TEXT, "pattern": "(?=a)"}, "", "'pattern': lookahead"),
        ({**TEXT, "pattern": 'a"b'}, "", "JSON escapes, at position 1"),
        ({**TEXT, "format": "iban"}, "", "'iban'"),
        ({"type": "object", "minProperties": 2}, "", "'minProperties'"),
        ({"minimum": 3, "maxLength": 4}, "", "number and string without a 'type'"),
        (False, "", "no value matches"),
    ],
)
def test_what_is_not_enforced_is_refused_by_name_and_place(document: Any, pointer: str, what: str) -> None:
    with pytest.raises(SchemaRefused, match=what) as refused:
        enforced(document)
    assert (refused.value.pointer, refused.value.unsupported) == (pointer, True)


@pytest.mark.parametrize(
    ("document", "what"),
    [
        (5, "neither an object nor a boolean"),
        ({"type": "text"}, "none of JSON's"),
        ({"type": []}, "empty"),
        ({"enum": []}, "empty"),
        ({"anyOf": {}}, "no list"),
        ({"enum": ["a", 1], "type": "string"}, "not of its 'type'"),
        ({"type": "object", "required": "a"}, "no list of names"),
        ({"type": "object", "properties": []}, "no object"),
        ({**of(1), "required": ["x"], "additionalProperties": False}, "'x', which is no property"),
        ({**TEXT, "minLength": 5, "maxLength": 3}, "'minLength' above 'maxLength'"),
        ({**TEXT, "maxLength": -1}, "between"),
        ({"type": "integer", "minimum": 5, "exclusiveMaximum": 6, "exclusiveMinimum": 5}, "no number lies"),
        ({"type": "number", "minimum": 1, "exclusiveMaximum": 1}, "no number lies"),
        ({"type": "number", "minimum": 1e300}, "2\\^53"),
        ({"const": [1e17]}, "2\\^53"),
        (
            {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, TEXT]}}, "$ref": "#/$defs/a"},
            "nothing but itself",
        ),
        ({"$ref": "#/$defs/b"}, "not there"),
        ({**of(3), "minProperties": 4, "additionalProperties": False}, "above the number"),
        ({"type": "array", "prefixItems": [TEXT], "items": False, "minItems": 2}, "above the number"),
        # bounds
        (of(schema.PROPERTIES_MAX + 1), "more than 500 properties"),
        ({"enum": list(range(1001))}, "more than 1000 enum values"),
        ({"anyOf": [TEXT] * 129}, "more than 128 branches"),
        (lengths(range(200, 204)), "3 different string lengths above 128"),
        (lengths(range(10, 120)), "add up to more than 2048"),
        ({"anyOf": [{**TEXT, "pattern": f"a{{{n}}}"} for n in range(1, 18)]}, "more than 16 patterns"),
        ({"description": "x" * schema.BYTES_MAX}, "bytes"),
        ({"enum": ["x" * schema.WRITTEN_BYTES_MAX]}, "bytes"),
        ({**of(65), "maxProperties": 3}, "more than 64 properties"),
    ],
)
def test_what_is_no_schema_or_passes_a_bound_is_refused(document: Any, what: str) -> None:
    with pytest.raises(SchemaRefused, match=what) as refused:
        enforced(document)
    assert not refused.value.unsupported


def test_nesting_is_bounded_however_deep_it_goes() -> None:
    document: Any = TEXT
    for _ in range(17):
        document = {"type": "array", "items": document}
    with pytest.raises(SchemaRefused, match="deeper than 16"):
        enforced(document)
    assert enforced(document["items"])
    for _ in range(100_000):
        document = {"items": document}
    with pytest.raises(SchemaRefused, match="nested too deeply"):
        enforced(document)


@pytest.mark.parametrize(
    ("document", "written"),
    [
        (True, {}),
        ({"title": "t", "description": "d", "default": 1, "x-ours": [], "nullable": True}, {}),
        ({**TEXT, "items": 5, "minimum": 1}, TEXT),
        ({"allOf": [TEXT]}, TEXT),
        ({"maxLength": 5}, {**TEXT, "maxLength": 5}),
        ({"type": ["integer", "number", "null"]}, {"anyOf": [{"type": "number"}, {"type": "null"}]}),
        (
            {"type": "integer", "exclusiveMinimum": 2.5, "maximum": 7.5},
            {"type": "integer", "minimum": 3, "maximum": 7},
        ),
        ({"const": {"a": 1}}, {"enum": [{"a": 1}]}),
        ({"type": "array", "minItems": 1}, {"type": "array", "items": {}, "minItems": 1}),
        ({"type": "object"}, {"type": "object", "additionalProperties": {}}),
        (
            {"type": "object", "properties": {"b": TEXT, "a": TEXT}, "required": ["c"]},
            {
                "type": "object",
                "properties": {"b": TEXT, "a": TEXT, "c": {}},
                "required": ["c"],
                "additionalProperties": False,
            },
        ),
    ],
)
def test_a_schema_is_written_so_that_all_of_it_is_enforced(document: Any, written: Any) -> None:
    """xgrammar drops `required` without properties, items without a schema, and what stands beside `enum`."""
    assert json.dumps(enforced(document)) == json.dumps(written)


def test_references_become_definitions_of_their_own() -> None:
    """xgrammar takes `$ref` into a part of the schema that was written otherwise."""
    tree = {
        "$defs": {"a b/c": {"type": "object", "properties": {"next": {"$ref": "#/$defs/a b~1c"}}}},
        "anyOf": [{"$ref": "#/$defs/a%20b~1c"}, {"$ref": "#/anyOf/0"}],
    }
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/d0"}}, "additionalProperties": False}
    assert enforced(tree) == {
        "$defs": {"d0": node, "d1": {"$ref": "#/$defs/d0"}},
        "anyOf": [{"$ref": "#/$defs/d0"}, {"$ref": "#/$defs/d1"}],
    }


def test_one_of_passes_where_a_constant_tells_its_branches_apart() -> None:
    def kind(*names: str) -> dict[str, Any]:
        return {"type": "object", "properties": {"kind": {"enum": list(names)}}, "required": ["kind"]}

    assert enforced({"oneOf": [kind("a", "b"), kind("c"), {"type": "null"}]})
    for branches in ([kind("a", "b"), kind("b")], [kind("a"), {"enum": [{"kind": "a"}]}]):
        with pytest.raises(SchemaRefused, match="'oneOf'"):
            enforced({"oneOf": branches})


def test_schemas_of_one_grammar_share_their_bounds() -> None:
    budget = schema.Budget()
    enforced(of(400), budget)
    with pytest.raises(SchemaRefused, match="more than 500 properties"):
        enforced(of(200), budget)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYWORDS),
            inner
            | st.sampled_from(["object", "array", "string", "number", "#", "#/$defs", "#/anyOf/0", "a+"]),
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values)
def test_no_json_raises_anything_else(document: Any) -> None:
    with contextlib.suppress(SchemaRefused):
        written = enforced(document)
        assert enforced(written) == written or "$ref" in str(written), "what was written is served as it is"
