"""A small application as users write it, and its right use. Type checkers find nothing in it."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import assert_type

import msgspec
from pydantic import BaseModel

from ondot import Context, Handle, Ondot, Workflow
from ondot.sdk import BoundHandler, Handler

app = Ondot(
    "http://127.0.0.1:9",
    "key",
)


class Order(BaseModel):
    id: int
    total: Decimal


@dataclass
class Receipt:
    order: int
    day: date


class Stock(msgspec.Struct):
    items: dict[str, int]


@app.job(retries=5, timeout="10m")
async def send_invoice(ctx: Context, order: Order, day: date) -> Receipt:
    ctx.log("sent", order=order.id)
    return Receipt(order.id, day)


@app.job
async def remind(order: Order, *, after: timedelta = timedelta(days=14)) -> None: ...


@app.job
def count_stock(ctx: Context, /, *shelves: str, **limits: int) -> Stock:
    return Stock({shelf: limits.get(shelf, 0) + ctx.attempt for shelf in shelves})


@app.job(cron="0 9 * * *")
def tidy() -> int:
    return 7


@app.workflow
def nightly(w: Workflow, region: str = "eu") -> None:
    w.step(tidy)


async def use(ctx: Context, order: Order, today: date) -> None:
    """Every call is as declared, and has the type that is asserted."""
    handle = await send_invoice.enqueue(order, day=today)
    assert_type(handle, Handle[Receipt])
    assert_type(await handle.result(timeout=30), Receipt)
    assert_type(await send_invoice.handle(handle.id).result(), Receipt)

    later = send_invoice.options(in_="10m", key="7", after=handle, priority="high", labels={"team": "bi"})
    assert_type(await later.enqueue(order, today), Handle[Receipt])
    await send_invoice.options(at=datetime(2030, 1, 1, tzinfo=UTC), retries=0, unique="invoice").enqueue(order, today)

    many = await send_invoice.enqueue_many(send_invoice.args(order, day=today) for _ in range(3))
    assert_type(many, list[Handle[Receipt]])
    await send_invoice.options(key="{order}").enqueue_many([send_invoice.args(order, today)])

    await remind.enqueue(order)
    await remind.enqueue(order, after=timedelta(days=1))
    assert_type(await (await remind.enqueue(order)).result(), None)
    assert_type(await (await count_stock.enqueue("a", "b", c=3)).result(), Stock)
    assert_type(await (await tidy.enqueue()).result(), int)

    assert_type(await send_invoice(ctx, order, today), Receipt)
    assert_type(count_stock(ctx, "a"), Stock)
    assert_type(tidy(), int)

    run = await nightly.options(in_=5).enqueue(region="us")
    await run.result()


def pass_on(invoice: Handler[[Order, date], Receipt]) -> BoundHandler[[Order, date], Receipt]:
    """A handler can be named by what it takes and returns."""
    return invoice.options(pool="mail")


async def pass_it() -> None:
    def adds(first: int, second: int) -> str:
        return f"{first + second}"

    assert_type(await (await app.job(adds).enqueue(1, 2)).result(), str)
