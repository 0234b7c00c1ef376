"""`$from`: read, and filled in."""

from typing import Any

import pytest
from msgspec import Raw

from ondot.model.workflow.values import (
    Item,
    Reference,
    StepValue,
    Unresolved,
    find_references,
    find_steps_named,
    is_step_name,
    read_reference,
    resolve,
)
from tests.proves import proves

VALUES = {
    "list": StepValue({"files": ["a", "b"], "n": 2, "a.b": True, "deep": {"x": [{"y": 7}]}}),
    "process": StepValue([1, None, 3], count=2),
    "skipped": StepValue(has_result=False),
    "spared": StepValue({"total": 0}),
}


@proves("W4")
@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("list.result", {"files": ["a", "b"], "n": 2, "a.b": True, "deep": {"x": [{"y": 7}]}}),
        ("list.result.files", ["a", "b"]),
        ("list.result.files.1", "b"),
        ("list.result.deep.x.0.y", 7),
        (["list", "result", "a.b"], True),
        ("process.count", 2),
        ("process.items", [1, None, 3]),
        ("process.result.2", 3),
        ("skipped.result", None),
        ("skipped.result.any.path", None),
        ("skipped.count", 0),
        ("spared.result.total", 0),
        ("payload", {"region": "eu"}),
        ("payload.region", "eu"),
        ("item", {"id": 9}),
        ("item.id", 9),
        ("index", 4),
    ],
)
def test_a_reference_stands_for_a_whole_value(path: object, value: object) -> None:
    template = {"before": 1, "here": [{"$from": path}]}
    found = resolve(template, VALUES, {"region": "eu"}, Item(4, {"id": 9}))
    assert found == {"before": 1, "here": [value]}


@proves("W4")
@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "list.result.nope",
            "The result of `list` has no `nope`, which `list.result.nope` needs: it is an object with",
        ),
        ("list.result.files.2", "has no `2` at `files`"),
        ("list.result.files.-1", "has no `-1` at `files`"),
        ("list.result.n.x", "has no `x` at `n`, which `list.result.n.x` needs: it is a number."),
        ("list.count", "`list` is no mapped step"),
        ("other.result", "There is no step `other` above this one"),
        ("payload.nope", "The payload of the run has no `nope`"),
        ("item", "only in a mapped step"),
    ],
)
def test_a_path_that_does_not_exist_is_a_sentence(path: str, message: str) -> None:
    with pytest.raises(Unresolved) as refusal:
        resolve({"$from": path}, VALUES, {})
    assert message in str(refusal.value)


@proves("W4")
def test_a_position_of_thousands_of_digits_is_a_position_that_does_not_exist() -> None:
    """Python raises ValueError for it, and the run that followed the path would never advance again."""
    with pytest.raises(Unresolved, match="has no `99999"):
        resolve({"$from": ["process", "result", "9" * 5_000]}, VALUES, None)
    with pytest.raises(Unresolved, match="has no"):
        resolve({"$from": ["process", "result", "3"]}, VALUES, None)


@proves("W4")
def test_a_result_that_looks_like_a_reference_is_data() -> None:
    values = {"evil": StepValue({"$from": "list.result"}), **VALUES}
    assert resolve({"x": {"$from": "evil.result"}}, values, {}) == {"x": {"$from": "list.result"}}


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ({"$from": "list.result", "x": 1}, "takes `$from` alone, got `x`"),
        ({"$from": 7}, "takes a path"),
        ({"$from": ""}, "takes a path"),
        ({"$from": []}, "takes a path"),
        ({"$from": "list..result"}, "takes a path"),
        ({"$from": "list"}, "goes on with `result`, `items` or `count`"),
        ({"$from": "list.output"}, "goes on with"),
        ({"$from": "list.count.x"}, "`count`, a number, after the step"),
        ({"$from": "index.x"}, "`count`, a number, after the step"),
        ({"$from": ".".join(["a"] * 40)}, "at most 32 parts"),
    ],
)
def test_a_wrong_reference_is_a_sentence(written: dict[str, Any], words: str) -> None:
    found = read_reference(written)
    assert isinstance(found, str)
    assert words in found


def test_references_are_found_with_their_places() -> None:
    payload = {"a": {"$from": "list.result.x"}, "b": [1, {"c": {"$from": "payload"}}]}
    assert dict(find_references(payload)) == {
        ("a",): Reference("list", "result", ("x",)),
        ("b", "1", "c"): Reference(None, "payload"),
    }
    assert find_steps_named(Raw(b'{"a": {"$from": "list.result.x"}, "b": {"$from": "payload"}}')) == {"list"}
    assert find_steps_named(Raw(b'{"a": 1}')) == frozenset()
    assert find_steps_named(None) == frozenset()


def test_names_of_steps_have_no_dots_and_no_words_that_references_begin_with() -> None:
    assert all(map(is_step_name, ["a", "load_2", "Load-Data", "7", "_x", "a" * 63]))
    assert not any(map(is_step_name, ["", "a.b", "payload", "item", "index", "run", "-a", "a b", "ä", "a" * 64]))
