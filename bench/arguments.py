"""What typed arguments cost, in microseconds of one call, against none.

*encode_us*: from the arguments of a call to the body of its job (`handler.body`), as `enqueue` does before it sends it.
*decode_us*: from the JSON of the payload, which a worker has, to the call of an empty plain function.

The same two values each time, by five signatures: without annotations, plain (`int`, `str`), `date` and `UUID`, a
dataclass, a pydantic model. *none*: without a handler; a dict is made, and the function is called with what JSON
decodes to. The least of many rounds, whose kinds take turns, so that other work of the machine counts for none.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")  # not this directory: its http.py would hide the library's

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Any
from uuid import UUID

import msgspec
from pydantic import BaseModel
from question import Result, ask

from ondot import Ondot

CALLS = 1_000
DAY, ID = date(2030, 1, 31), UUID(int=7)


@dataclass
class Order:
    day: date
    id: UUID


class Model(BaseModel):
    day: date
    id: UUID


app = Ondot("http://127.0.0.1:9", "key")


@app.job
def without(number, text) -> None:  # type: ignore[no-untyped-def]
    return


@app.job
def plain(number: int, text: str) -> None:
    return


@app.job
def scalars(day: date, id_: UUID) -> None:
    return


@app.job
def with_dataclass(order: Order) -> None:
    return


@app.job
def with_model(order: Model) -> None:
    return


def encode_none(number: int, text: str) -> dict[str, Any]:
    payload = {"number": number, "text": text}
    return {"name": "none", "target": {"function": "none"}, "payload": payload}


def empty(number: int, text: str) -> None:
    return


def ways() -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    kinds: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "unannotated": (without, (7, "seven")),
        "plain": (plain, (7, "seven")),
        "date_and_uuid": (scalars, (DAY, ID)),
        "dataclass": (with_dataclass, (Order(DAY, ID),)),
        "pydantic": (with_model, (Model(day=DAY, id=ID),)),
    }
    bare = msgspec.json.encode({"number": 7, "text": "seven"})
    found: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "none": (lambda: encode_none(7, "seven"), lambda: empty(**msgspec.json.decode(bare)))
    }
    for name, (handler, arguments) in kinds.items():
        payload = msgspec.json.encode(handler.body(*arguments)["payload"])
        found[name] = (
            lambda handler=handler, arguments=arguments: handler.body(*arguments),  # type: ignore[misc]
            lambda handler=handler, payload=payload: handler.bind(None, msgspec.json.decode(payload))(),  # type: ignore[misc]
        )
    return found


def microseconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - began) / CALLS * 1e6


def measure(quick: bool) -> Result:
    found = ways()
    least = {name: [1e9, 1e9] for name in found}
    for _ in range(20 if quick else 200):
        for name, both in found.items():
            least[name] = [min(before, microseconds(call)) for before, call in zip(least[name], both, strict=True)]
    return {
        "question": "What do typed arguments cost?",
        "encode_us": {name: round(encode, 2) for name, (encode, _) in least.items()},
        "decode_us": {name: round(decode, 2) for name, (_, decode) in least.items()},
    }


if __name__ == "__main__":
    ask(measure, full="200 rounds of 1,000 calls", quick="20 rounds")
