"""Arguments by annotation: what is sent, what arrives, and what is refused before anything is sent (D2)."""

import inspect
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, TypedDict, Unpack
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
from pydantic import BaseModel, ConfigDict, Field
from pydantic.dataclasses import dataclass as pydantic_dataclass

from ondot.sdk.arguments import ArgumentError, FunctionTypes, namespace_of
from tests.proves import proves

pytestmark = proves("D2")


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 1


class Region(StrEnum):
    EU = "eu"


@dataclass
class Line:
    product: str
    price: Decimal


@dataclass
class Basket:
    lines: list[Line]
    day: date
    notes: dict[int, str] = field(default_factory=dict)


class Item(msgspec.Struct):
    name: str
    at: datetime


class Point(NamedTuple):
    x: int
    y: float


class Address(TypedDict, total=False):
    street: str
    since: date


class Money(BaseModel):
    amount: Decimal
    currency: str = Field(max_length=3)


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid")
    id: int
    total: Money
    placed: datetime
    lines: list[Line] = []


@pydantic_dataclass
class Strict:
    size: Annotated[int, Field(gt=0)]


@dataclass
class Holder:
    """A dataclass of the standard library that holds a model."""

    order: Order


Customer = NewType("Customer", int)
A_DAY = date(2030, 1, 31)
NAIVE = datetime(2030, 1, 31, 9)  # noqa: DTZ001 - such datetimes travel, too
AN_ORDER = Order(id=7, total=Money(amount=Decimal("9.90"), currency="EUR"), placed=datetime(2030, 1, 31, 9, tzinfo=UTC))


def types(function: Callable[..., Any]) -> FunctionTypes:
    signature = inspect.signature(function)
    return FunctionTypes(
        function.__name__, signature.parameters.values(), signature.return_annotation, namespace_of(function)
    )


def of(annotation: Any) -> FunctionTypes:
    parameter = inspect.Parameter("value", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation)
    return FunctionTypes("f", [parameter], annotation, globals())


def travel(codecs: FunctionTypes, value: Any) -> tuple[Any, Any]:
    """As JSON, and as it arrives."""
    sent = msgspec.json.encode(codecs.encode({"value": value}))
    return msgspec.json.decode(sent)["value"], codecs.decode(msgspec.json.decode(sent))["value"]


@pytest.mark.parametrize(
    ("annotation", "value", "sent"),
    [
        (str, "é\u0000 ok", "é\u0000 ok"),
        (int, 7, 7),
        (int, 2**80, 2**80),
        (float, 7.5, 7.5),
        (bool, True, True),
        (None, None, None),
        (date, A_DAY, "2030-01-31"),
        (datetime, NAIVE, "2030-01-31T09:00:00"),
        (datetime, datetime(2030, 1, 31, 9, tzinfo=UTC), "2030-01-31T09:00:00Z"),
        (time, time(9, 30), "09:30:00"),
        (timedelta, timedelta(days=1, seconds=90.5), "P1DT90.5S"),
        (UUID, UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (Decimal, Decimal("1.10"), "1.10"),
        (Decimal, Decimal("1E+400"), "1E+400"),
        (Colour, Colour.RED, "red"),
        (Size, Size.SMALL, 1),
        (Region, Region.EU, "eu"),
        (bytes, b"\xff\x00", "/wA="),
        (Path, Path("/tmp/é"), "/tmp/é"),
        (PurePosixPath, PurePosixPath("a/b"), "a/b"),
        (Literal["a", "b", 3], 3, 3),
        (date | None, None, None),
        (int | str | None, "7", "7"),
        (list[date], [A_DAY], ["2030-01-31"]),
        (set[UUID], {UUID(int=1)}, ["00000000-0000-0000-0000-000000000001"]),
        (frozenset[int], frozenset({1}), [1]),
        (tuple[int, date], (1, A_DAY), [1, "2030-01-31"]),
        (tuple[int, ...], (1, 2), [1, 2]),
        (dict[int, date], {1: A_DAY}, {"1": "2030-01-31"}),
        (dict[date, int], {A_DAY: 1}, {"2030-01-31": 1}),
        (dict[Colour, Path], {Colour.RED: Path("x")}, {"red": "x"}),
        (Sequence[Line], [Line("a", Decimal("1.5"))], [{"product": "a", "price": "1.5"}]),
        (Customer, Customer(7), 7),
        (Point, Point(1, 2.5), [1, 2.5]),
        (Address, {"street": "x", "since": A_DAY}, {"street": "x", "since": "2030-01-31"}),
        (
            Basket,
            Basket([Line("a", Decimal("1.5"))], A_DAY, {2: "b"}),
            {"lines": [{"product": "a", "price": "1.5"}], "day": "2030-01-31", "notes": {"2": "b"}},
        ),
        (Item, Item("a", datetime(2030, 1, 1, tzinfo=UTC)), {"name": "a", "at": "2030-01-01T00:00:00Z"}),
        (Annotated[int, msgspec.Meta(ge=0)], 0, 0),
        (Annotated[int, Field(ge=0)], 0, 0),
        (
            Order,
            AN_ORDER,
            {"id": 7, "total": {"amount": "9.90", "currency": "EUR"}, "placed": "2030-01-31T09:00:00Z", "lines": []},
        ),
        (list[Money], [Money(amount=Decimal(1), currency="EUR")], [{"amount": "1", "currency": "EUR"}]),
        (dict[str, Money | None], {"a": None}, {"a": None}),
        (Strict, Strict(size=3), {"size": 3}),
        (date | datetime, A_DAY, "2030-01-31"),
        (date | datetime, NAIVE, "2030-01-31T09:00:00"),
        (Line | Point, Point(1, 2.0), [1, 2.0]),
        (list[Any], [1, "a", {"b": [None]}], [1, "a", {"b": [None]}]),
        (dict[str, Any], {"b": [None, 1.5]}, {"b": [None, 1.5]}),
        (ZoneInfo, ZoneInfo("Europe/Berlin"), "Europe/Berlin"),
    ],
)
def test_what_arrives_is_what_the_annotation_says(annotation: Any, value: Any, sent: Any) -> None:
    on_the_way, arrived = travel(of(annotation), value)

    assert on_the_way == sent
    assert arrived == value
    assert type(arrived) is type(value)


def test_a_model_inside_a_dataclass_arrives_as_one() -> None:
    _, arrived = travel(of(Holder), Holder(AN_ORDER))
    assert arrived == Holder(AN_ORDER)


def test_an_int_arrives_as_a_float_where_one_is_annotated() -> None:
    _, arrived = travel(of(float), 7)
    assert type(arrived) is float
    assert arrived == 7


def test_an_aware_datetime_keeps_its_instant_and_offset() -> None:
    berlin = datetime(2030, 7, 1, 9, tzinfo=ZoneInfo("Europe/Berlin"))
    _, arrived = travel(of(datetime), berlin)
    assert arrived == berlin
    assert arrived.tzinfo == timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (int, "seven", "f: argument `value` takes int, got 'seven'."),
        (int, True, "f: argument `value` takes int, got True."),
        (int, 7.0, "f: argument `value` takes int, got 7.0."),
        (str, 7, "f: argument `value` takes str, got 7."),
        (str, A_DAY, "f: argument `value` takes str, got datetime.date(2030, 1, 31)."),
        (str, None, "f: argument `value` takes str, got None."),
        (float, float("nan"), "f: argument `value` takes float, got nan: JSON has no nan."),
        (float | None, float("-inf"), "f: argument `value` takes float | None, got -inf: JSON has no -inf."),
        (date, "2030-01-31", "f: argument `value` takes date, got '2030-01-31'."),
        (date, NAIVE, "f: argument `value` takes date, got datetime.datetime(2030, 1, 31, 9, 0)."),
        (Decimal, 1.5, "f: argument `value` takes Decimal, got 1.5."),
        (UUID, "x", "f: argument `value` takes UUID, got 'x'."),
        (Path, 7, "f: argument `value` takes Path, got 7."),
        (Colour, "green", "f: argument `value` takes Colour, got 'green': Invalid enum value 'green'."),
        (Literal["a"], "b", "f: argument `value` takes Literal['a'], got 'b': Invalid enum value 'b'."),
        (
            list[int],
            [1, "2"],
            "f: argument `value` takes list[int], and `value[1]` does not fit: Expected int, got str.",
        ),
        (
            dict[int, date],
            {1: 2},
            "f: argument `value` takes dict[int, date], and `value[…]` does not fit: Expected date, got int.",
        ),
        (
            tuple[int, str],
            (1,),
            "f: argument `value` takes tuple[int, str], got (1,): Expected array of length 2, got 1.",
        ),
        (
            Basket,
            Basket([Line("a", Decimal(1)), Line("b", 2)], A_DAY),  # type: ignore[arg-type]
            "f: argument `value` takes Basket, and `value.lines[1].price` does not fit: Expected decimal, got int.",
        ),
        (Basket, 7, "f: argument `value` takes Basket, got 7."),
        (Annotated[int, msgspec.Meta(ge=0)], -1, "got -1: Expected int >= 0."),
        (Annotated[int, Field(ge=0)], -1, "got -1: Input should be greater than or equal to 0."),
        (Order, 7, "f: argument `value` takes Order, got 7: Input should be a valid dictionary or instance of Order."),
        (
            Order,
            AN_ORDER.model_copy(update={"total": Money.model_construct(amount="x", currency="EUR")}),
            "f: argument `value` takes Order, and `value.total.amount` does not fit: Input should be a valid decimal.",
        ),
        (Order, AN_ORDER.model_dump() | {"more": 1}, "`value.more` does not fit: Extra inputs are not permitted."),
        (Strict, {"size": 0}, "`value.size` does not fit: Input should be greater than 0."),
        (str | Path, Path("x"), "it would arrive as 'x'."),
        (Any, float("inf"), "f: argument `value` got inf: JSON has no inf."),
        (Any, {"a": [1, float("nan")]}, "f: argument `value` and `value.a[1]` does not fit: JSON has no nan."),
        (dict[str, Any], {"a": float("nan")}, "`value.a` does not fit: JSON has no nan."),
        (tuple[float, ...], (1.5, float("nan")), "`value[1]` does not fit: JSON has no nan."),
        (Any, object(), "it is sent as JSON, and cannot be"),
    ],
)
def test_what_does_not_fit_is_refused_with_argument_type_and_path(annotation: Any, value: Any, message: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        of(annotation).encode({"value": value})
    assert message in str(refused.value)
    assert refused.value.function == "f"
    assert refused.value.argument == "value"


@pytest.mark.parametrize(
    ("annotation", "payload", "message"),
    [
        (int, "seven", "f: argument `value` takes int, got str."),
        (date, "2030-02-30", "f: argument `value` takes date, got str: Invalid RFC3339 encoded date."),
        (Basket, {"lines": []}, "got dict: Object missing required field day."),
        (Basket, {"lines": [{"product": 1}], "day": "2030-01-31"}, "`value.lines[0].product` does not fit"),
        (Order, {"id": "x"}, "`value.id` does not fit"),
        (bytes, "%%%", "got str: Invalid base64 encoded string."),
    ],
)
def test_a_worker_refuses_what_does_not_fit_and_shows_no_values(annotation: Any, payload: Any, message: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        of(annotation).decode({"value": payload})
    assert message in str(refused.value)
    assert "seven" not in str(refused.value)


def test_a_worker_reads_what_other_programs_write() -> None:
    assert of(Decimal).decode({"value": 1.5}) == {"value": Decimal("1.5")}
    assert of(Order).decode({"value": AN_ORDER.model_dump(mode="json")}) == {"value": AN_ORDER}


def test_what_json_has_itself_is_not_decoded() -> None:
    def plain(a, b: Any, c: object, **rest): ...  # type: ignore[no-untyped-def]

    def typed(a, b: int): ...  # type: ignore[no-untyped-def]

    payload = {"a": [1], "b": 7}
    assert types(plain).fits(payload)
    assert types(typed).fits(payload)
    assert types(typed).decode(payload) is payload
    assert not types(typed).fits({"b": "7"})


def test_variable_arguments_have_types_too() -> None:
    def f(first: int, *days: date, **others: UUID) -> None: ...

    codecs = types(f)
    given = {"first": 1, "days": (A_DAY,), "x": UUID(int=1)}
    payload = codecs.encode(given)
    assert payload == {"first": 1, "days": ("2030-01-31",), "x": str(UUID(int=1))}
    assert codecs.decode(payload) == {**given, "days": [A_DAY]}
    with pytest.raises(ArgumentError, match=r"f: argument `y` takes UUID, got 7\."):
        codecs.encode({"y": 7})
    assert codecs.schema()["additionalProperties"] == {"type": "string", "format": "uuid"}


class Extras(TypedDict):
    day: date
    size: NotRequired[int]


def test_the_keys_of_a_typed_dict_are_arguments() -> None:
    def f(first: int, **others: Unpack[Extras]) -> None: ...

    codecs = types(f)
    payload = codecs.encode({"first": 1, "day": A_DAY})
    assert payload == {"first": 1, "day": "2030-01-31"}
    assert codecs.decode(payload) == {"first": 1, "day": A_DAY}
    schema = codecs.schema()
    assert (schema["required"], schema["additionalProperties"]) == (["first", "day"], False)
    assert schema["properties"]["size"] == {"type": "integer"}
    with pytest.raises(ArgumentError, match=r"f: argument `size` takes int, got '7'\."):
        codecs.encode({"size": "7"})


class Unknowable:
    pass


def test_a_type_that_json_cannot_carry_is_refused_where_it_is_written() -> None:
    def needs(what: Unknowable) -> None: ...

    def may(what: Unknowable | None = None) -> Unknowable | None: ...

    with pytest.raises(ArgumentError, match=r"needs: argument `what`: Unknowable cannot travel as JSON"):
        types(needs)
    codecs = types(may)
    assert codecs.schema()["properties"] == {}
    with pytest.raises(ArgumentError, match=r"may: argument `what` takes Unknowable \| None"):
        codecs.encode({"what": Unknowable()})


def test_an_annotation_may_name_what_is_defined_later() -> None:
    namespace: dict[str, Any] = {"__name__": "later", "date": date, "dataclass": dataclass}
    exec("def f(day: 'list[Later]'): ...", namespace)
    codecs = types(namespace["f"])
    exec("@dataclass\nclass Later:\n    day: date", namespace)
    arrived = codecs.decode({"day": [{"day": "2030-01-31"}]})
    assert arrived == {"day": [namespace["Later"](A_DAY)]}


def test_an_annotation_for_type_checkers_alone_carries_plain_json_only() -> None:
    def f(order: "OnlyForTypeCheckers", other: "list[OnlyForTypeCheckers]") -> None: ...  # type: ignore[name-defined] # noqa: F821

    codecs = types(f)
    assert codecs.encode({"order": {"a": [1]}, "other": "x"}) == {"order": {"a": [1]}, "other": "x"}
    with pytest.raises(ArgumentError, match=r"'OnlyForTypeCheckers' cannot be read .* so a date would arrive"):
        codecs.encode({"order": [A_DAY]})


def test_results_are_read_as_annotated() -> None:
    def f() -> list[Order]:
        raise NotImplementedError

    codecs = types(f)
    stored = codecs.encode_result([AN_ORDER])
    assert codecs.decode_result(msgspec.json.decode(stored)) == [AN_ORDER]
    with pytest.raises(
        ArgumentError, match=r"f returns list\[Order\], .* does not fit at `result\[0\]\.total`: Field req"
    ):
        codecs.decode_result([{"id": 1, "placed": "2030-01-31T09:00:00Z"}])
    with pytest.raises(ArgumentError, match=r"f returns list\[Order\], .* Input should be a valid"):
        codecs.decode_result(None)


def test_results_without_annotation_may_hold_models_and_paths() -> None:
    def f(): ...  # type: ignore[no-untyped-def]

    stored = types(f).encode_result({"money": Money(amount=Decimal(1), currency="EUR"), "path": Path("x")})
    assert msgspec.json.decode(stored) == {"money": {"amount": "1", "currency": "EUR"}, "path": "x"}


def test_the_schema_describes_the_payload() -> None:
    def f(
        order: Order,
        lines: list[Line],
        day: date = A_DAY,
        *,
        size: Annotated[int, msgspec.Meta(ge=1)] = 3,
        more: Any = None,
    ) -> None: ...

    schema = types(f).schema()
    assert schema["type"] == "object"
    assert schema["required"] == ["order", "lines"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["day"] == {"type": "string", "format": "date", "default": "2030-01-31"}
    assert schema["properties"]["size"] == {"type": "integer", "minimum": 1, "default": 3}
    assert schema["properties"]["more"] == {"default": None}
    assert schema["properties"]["order"]["properties"]["total"] == {"$ref": "#/$defs/Money"}
    assert {"Money", "Line"} <= schema["$defs"].keys()
    assert b'"pattern"' not in msgspec.json.encode(schema)


def test_two_types_of_one_name_have_two_definitions() -> None:
    def other() -> type:
        @dataclass
        class Money:
            cents: int

        return Money

    def f(a: list[Money], b) -> None: ...  # type: ignore[no-untyped-def]

    f.__annotations__["b"] = other()
    schema = types(f).schema()
    assert schema["properties"]["a"]["items"] == {"$ref": "#/$defs/Money"}
    assert schema["properties"]["b"] == {"$ref": "#/$defs/Money-2"}
    assert schema["$defs"]["Money-2"]["required"] == ["cents"]


def test_pydantic_is_loaded_only_where_it_is_used() -> None:
    program = (
        "import sys\n"
        "from dataclasses import dataclass\n"
        "from datetime import date\n"
        "from ondot import Ondot\n"
        "app = Ondot()\n"
        "@dataclass\n"
        "class Order:\n"
        "    day: date\n"
        "@app.job\n"
        "def f(order: Order, day: date) -> Order: ...\n"
        "f.body(Order(date(2030, 1, 1)), date(2030, 1, 1))\n"
        "assert 'pydantic' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
