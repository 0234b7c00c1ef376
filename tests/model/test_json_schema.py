"""Checks by a JSON Schema: messages, the bounds of hostile schemas, and which schemas are not accepted."""

import time
from typing import Any

import pytest

from ondot.model.json_schema import MAX_BYTES, MAX_FAULTS, Check, find_fault
from tests.proves import proves


def faults(schema: dict[str, Any], value: object) -> list[tuple[str, str]]:
    return [("/".join(path), message) for path, message in Check(schema).find_faults(value)]


@proves("D1")
@pytest.mark.parametrize(
    ("schema", "right", "wrong", "message"),
    [
        ({"type": "integer"}, 7, 7.0, "The payload must be a whole number, got 7.0."),
        ({"type": "integer"}, 7, True, "The payload must be a whole number, got true."),
        ({"type": "number"}, 7, "7", 'The payload must be a number, got "7".'),
        ({"type": ["string", "null"]}, None, 1, "The payload must be text or null, got 1."),
        ({"enum": [1, "a"]}, 1, True, 'The payload must be 1 or "a", got true.'),
        ({"const": None}, None, 0, "The payload must be null, got 0."),
        ({"minimum": 1, "exclusiveMaximum": 3}, 2, 3, "The payload must be less than 3, got 3."),
        ({"multipleOf": 0.1}, 0.3, 0.35, "The payload must be a multiple of 0.1, got 0.35."),
        ({"minLength": 2, "maxLength": 3}, "äö", "a", "The payload must have at least 2 characters, got 1."),
        ({"minItems": 1}, [1], [], "The payload must have at least 1 entries, got 0."),
        ({"uniqueItems": True}, [1, 2], [{"a": 1}, {"a": 1}], "The payload must not have an entry twice."),
        (
            {"format": "date"},
            "2030-01-31",
            "31.1.2030",
            'The payload must be a date such as "2030-01-31", got "31.1.2030".',
        ),
        ({"format": "uuid"}, "6f1e2d3c-4b5a-7c11-a0b3-6f1e2d3c4b5a", "6f", 'The payload must be a UUID, got "6f".'),
        ({"contentEncoding": "base64"}, "YQ==", "a b", 'The payload must be bytes in base64, got "a b".'),
        (
            {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
            None,
            7,
            'The payload must be a date such as "2030-01-31" or null, got 7.',
        ),
        ({"prefixItems": [{"type": "string"}], "items": False}, ["a"], ["a", 1], "`1` is not expected."),
        ({"additionalProperties": {"type": "integer"}}, {"a": 1}, {"a": "x"}, '`a` must be a whole number, got "x".'),
        ({"allOf": [{"minimum": 1}, {"maximum": 2}]}, 2, 3, "The payload must be at most 2, got 3."),
    ],
)
def test_a_value_fits_or_is_rejected_with_a_sentence(
    schema: dict[str, Any], right: object, wrong: object, message: str
) -> None:
    assert faults(schema, right) == []
    assert [said for _, said in faults(schema, wrong)] == [message]


@proves("D1")
def test_the_fault_of_the_branch_that_was_meant_is_shown() -> None:
    order = {"type": "object", "properties": {"price": {"type": "number"}}, "required": ["price"]}
    assert faults({"anyOf": [{"type": "null"}, order]}, {"price": "x"}) == [
        ("price", '`price` must be a number, got "x".')
    ]


@proves("D1")
def test_references_to_values_of_the_attempt_fit_everywhere() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}}
    assert faults(schema, {"n": {"$from": "list.result"}, "s": {"$secret": "stripe"}}) == []


@proves("D1")
@pytest.mark.parametrize(
    "schema",
    [
        pytest.param({"$ref": "#"}, id="itself"),
        pytest.param(
            {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, id="circle"
        ),
        pytest.param({"$ref": "#/nowhere/~1~0"}, id="nothing"),
        pytest.param(
            {"anyOf": [{"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}, {"$ref": "#"}, {"type": "null"}]}, id="exponential"
        ),
        pytest.param({"properties": {"x": {"$ref": "#"}}, "required": ["x"]}, id="recursive"),
        pytest.param({"allOf": [{"$ref": "#"}, {"$ref": "#"}], "type": "string"}, id="all of itself"),
        pytest.param({"type": 7, "enum": 7, "required": 7, "properties": 7, "anyOf": 7, "minimum": "x"}, id="nonsense"),
        pytest.param({"prefixItems": 7, "minItems": "x", "minProperties": [], "items": 7}, id="more nonsense"),
        pytest.param({"multipleOf": 0}, id="zero"),
        pytest.param({"anyOf": [{"type": [[]], "format": {}}, 7, {"enum": "x"}], "oneOf": [{}]}, id="odd branches"),
        pytest.param({"minLength": True, "format": ["date"], "const": [], "$ref": 7}, id="odd words"),
        pytest.param({"type": "unheard of"}, id="unknown type"),
    ],
)
@pytest.mark.parametrize("value", [None, "x", 10**400, {"x": {"x": {}}}, [[[]]] * 50, {"a": 1}], ids=range(6))
def test_a_hostile_schema_ends_soon_and_raises_nothing(schema: dict[str, Any], value: object) -> None:
    started_s = time.monotonic()
    Check(schema).find_faults(value)
    assert time.monotonic() - started_s < 5, "a check has a bounded number of steps"


@proves("D1")
def test_a_deep_value_is_not_followed_for_ever_and_faults_are_few() -> None:
    schema = {"type": "object", "properties": {"x": {"$ref": "#"}}}
    deep: dict[str, Any] = {}
    for _ in range(900):
        deep = {"x": deep}
    assert faults(schema, deep) == []
    assert len(faults({"items": {"type": "string"}}, [1] * 10_000)) == MAX_FAULTS


@proves("D1")
@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"properties": {"a": {"pattern": "(a+)+$"}}}, "pattern"),
        ({"$defs": {"a": {"patternProperties": {}}}}, "patternProperties"),
        ({"properties": {"a": {"$ref": "https://example.com/schema"}}}, "outside"),
        ({"description": "x" * MAX_BYTES}, "bytes"),
        ({"default": float("nan"), "x": object()}, "not JSON"),
        ([], "no object"),
    ],
)
def test_a_schema_that_is_not_accepted_says_why(schema: Any, why: str) -> None:
    assert why in (find_fault(schema) or "")


@proves("D1")
def test_an_argument_may_be_called_pattern() -> None:
    assert find_fault({"properties": {"pattern": {"type": "string"}}, "default": {"pattern": "x"}}) is None
