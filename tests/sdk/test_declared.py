"""What a worker registers of its functions (D1): the schema accepts what decodes, and what is encoded is accepted."""

import enum
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from ondot.model.json_schema import Check
from ondot.sdk.app import Ondot
from ondot.sdk.arguments import ArgumentError
from ondot.sdk.declared import declare_functions
from ondot.sdk.handler import Handler
from tests.proves import proves


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Line:
    sku: str
    count: int = 1


class Order(BaseModel):
    id: int = Field(ge=1)
    lines: list[Line] = []
    note: str | None = None


ZONED = st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
TYPES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers(-(2**53), 2**53)),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (str, st.text()),
    (bool, st.booleans()),
    (date, st.dates()),
    (datetime, ZONED),
    (time, st.times()),
    (timedelta, st.timedeltas(timedelta(days=-1000), timedelta(days=1000))),
    (UUID, st.uuids()),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    (bytes, st.binary()),
    (Color, st.sampled_from(Color)),
    (Literal["a", 1], st.sampled_from(["a", 1])),
    (Path, st.just(Path("/tmp/x"))),
    (list[date] | None, st.none() | st.lists(st.dates(), max_size=3)),
    (dict[str, int], st.dictionaries(st.text(), st.integers(-5, 5), max_size=3)),
    (tuple[int, str], st.tuples(st.integers(-5, 5), st.text())),
    (Line, st.builds(Line, st.text(), st.integers(0, 9))),
    (Order, st.builds(Order, id=st.integers(1, 9), note=st.none() | st.text())),
]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(
        [
            "2030-01-31",
            "2030-02-30",
            "2030-01-31T09:00:00Z",
            "2030-01-31T09:00",
            "2030-01-31 09:00:00",
            "09:30:00",
            "24:00:00",
            "PT90S",
            "P1M",
            "P1D",
            "-PT1H",
            "12.50",
            "1e5",
            "nan",
            "Infinity",
            "1_000",
            "YQ==",
            "YQ",
            "a b",
            "red",
            "RED",
            "6f1e2d3c-4b5a-7c11-a0b3-6f1e2d3c4b5a",
            "6f1e2d3c4b5a7c11a0b36f1e2d3c4b5a",
            "7",
            "",
            "true",
        ]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["sku", "count", "id", "lines", "note", "x"]), inner, max_size=4)
    ),
    max_leaves=6,
)


def declared(annotation: Any) -> tuple[Handler[..., Any], Check]:
    def function(value: Any) -> None: ...

    function.__annotations__["value"] = annotation
    app = Ondot(name="shop")
    handler = app.job(function)
    [one] = declare_functions(app)
    assert one.schema is not None
    return handler, Check(one.schema)


@proves("D1", "D2")
@pytest.mark.parametrize(("annotation", "values"), TYPES, ids=lambda one: str(one)[:30])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_what_is_encoded_is_accepted_and_what_is_accepted_decodes(
    annotation: Any, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    handler, check = declared(annotation)
    sent = handler.types.encode({"value": data.draw(values)})
    assert check.find_faults(msgspec.json.decode(msgspec.json.encode(sent))) == []

    payload = {"value": data.draw(JSON)}
    if not check.find_faults(payload):
        try:
            handler.types.decode(payload)
        except ArgumentError as error:
            pytest.fail(f"{payload!r} is accepted, and the worker rejects it: {error}")


@proves("D1")
def test_a_declared_function_has_its_options_docstring_and_the_defaults_that_its_keys_name() -> None:
    app = Ondot(name="shop")

    @app.job(
        cron="0 3 * * *", overlap="skip", retries=0, timeout=timedelta(minutes=2), concurrency_key="c:{customer}:{{x}}"
    )
    def bill(customer: int = 7, day: date = date(2030, 1, 31)) -> None:
        """Bill a customer.

        With more about it.
        """

    [one] = declare_functions(app)

    assert (one.name, one.description) == ("bill", "Bill a customer.")
    assert one.options == {"retry": {"max_retries": 0}, "timeout": 120, "concurrency_key": "c:{customer}:{{x}}"}
    assert one.argument_defaults == {"customer": 7}
    assert one.schema is not None
    assert one.schema["properties"]["day"] == {"type": "string", "format": "date", "default": "2030-01-31"}
    key = ["c:", {"argument": "customer"}, ":{x}"]
    assert one.enqueued == {"retry": {"max_retries": 0}, "timeout_s": 120, "limits": {"key": key, "key_concurrency": 1}}


@proves("D1")
def test_a_schema_that_cannot_be_kept_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    app = Ondot(name="shop")

    @app.job
    def big(kind: Literal[tuple(f"{n:0100}" for n in range(700))]) -> None: ...  # type: ignore[valid-type]

    assert declare_functions(app)[0].schema is None
    assert "function.schema_not_kept" in capsys.readouterr().out
