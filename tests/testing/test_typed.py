"""A typed application in a world: from enqueue to the result, and what does not fit on the way (D2)."""

from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from pydantic import BaseModel

from ondot import NotSucceeded, Ondot, Workflow
from ondot.testing import open_world
from tests.proves import proves

app = Ondot()
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
DAY = date(2030, 1, 31)


class Order(BaseModel):
    id: int
    total: Decimal


@dataclass
class Receipt:
    order: int
    total: Decimal
    day: date


@app.job(retries=5)
def find_order(number: int) -> Order:
    return Order(id=number, total=Decimal("9.90"))


@app.job(retries=5)
async def send_invoice(order: Order, day: date) -> Receipt:
    return Receipt(order.id, order.total, day)


@app.workflow
def invoice(w: Workflow, day: date = DAY) -> None:
    found = w.step(find_order, number=7)
    w.step(send_invoice, order=found.result, day=day)
    w.step(send_invoice, name="again", order=Order(id=8, total=Decimal(1)), day=DAY)


@proves("D2", "O7")
async def test_what_arrives_and_what_comes_back_is_what_the_annotations_say() -> None:
    async with open_world(app, at=NOON) as world:
        order = Order(id=7, total=Decimal("9.90"))
        now = await send_invoice.enqueue(order, day=DAY)
        later = await send_invoice.options(in_="1h", key="later").enqueue_many([send_invoice.args(order, DAY)])
        await world.advance(hours=2)
        assert await now.result() == Receipt(7, Decimal("9.90"), DAY)
        assert await later[0].result() == await send_invoice.handle(later[0].id).result()


@proves("D2")
async def test_a_payload_of_another_program_that_does_not_fit_fails_once() -> None:
    async with open_world(app, at=NOON) as world:
        body = send_invoice.body(Order(id=7, total=Decimal(1)), DAY)
        wrong = {"order": {"id": "seven", "total": "1"}, "day": "2030-01-31"}
        job = await app.client.create_job(body | {"payload": wrong})
        await world.advance(hours=1)
        with pytest.raises(NotSucceeded, match=r"`order\.id` does not fit") as failed:
            await send_invoice.handle(job["id"]).result()
        assert (failed.value.error_type, failed.value.attempts) == ("bad-arguments", 1)


@proves("D2", "W1")
async def test_results_of_steps_are_read_by_the_annotations_of_the_steps_after_them() -> None:
    async with open_world(app, at=NOON) as world:
        run = await invoice.options(in_=1).enqueue(date(2031, 2, 3))
        await world.advance(hours=1)
        results = await run.result()
    assert results["send_invoice"] == {"order": 7, "total": "9.90", "day": "2031-02-03"}
    assert results["again"] == {"order": 8, "total": "1", "day": "2030-01-31"}


def test_arguments_of_a_step_that_do_not_fit_are_refused_with_the_line() -> None:
    def wrong(w: Workflow) -> None:
        w.step(send_invoice, order=Order(id=8, total=Decimal(1)), day="monday")

    with pytest.raises(TypeError, match=r"wrong, test_typed\.py line \d+: send_invoice: argument `day` takes date"):
        app.workflow(wrong)
