"""Wrong use of the application. Each line names the errors that mypy and pyright must find in it, and no other line has
one: both report a comment that nothing needs."""

from datetime import date

from ondot import Context, Handle
from tests.sdk.typed_app.shop import Order, Receipt, app, count_stock, nightly, remind, send_invoice, tidy


async def wrong_arguments(order: Order, today: date) -> None:
    await send_invoice.enqueue(order, dya=today)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await send_invoice.enqueue(order, "today")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await send_invoice.enqueue(order)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await send_invoice.enqueue(order, today, 3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await send_invoice.enqueue({"id": 7}, today)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await remind.enqueue(order, after="14d")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await count_stock.enqueue("a", 7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await tidy.enqueue(7)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await nightly.enqueue(regoin="us")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def a_context_that_the_worker_passes(ctx: Context, order: Order, today: date) -> None:
    await send_invoice.enqueue(ctx, order, today)  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]
    await send_invoice(order, today)  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]


async def wrong_options(order: Order, today: date) -> None:
    send_invoice.options(prioritty="high")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    send_invoice.options(retries="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    send_invoice.options(priority="urgent")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    send_invoice.options(cron="* * * * *")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await send_invoice.options(in_=5).enqueue(today, order)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.job(retris=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


async def the_former_ways(order: Order, today: date) -> None:
    await send_invoice.schedule(in_=5)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    await tidy.enqueue(after="a-key")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await tidy.enqueue_many([{}])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


async def wrong_results(order: Order, today: date) -> None:
    text: str = await (await send_invoice.enqueue(order, today)).result()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    handle: Handle[int] = await send_invoice.enqueue(order, today)  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    receipt = await (await send_invoice.enqueue(order, today)).result()
    receipt.total()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    many = await send_invoice.enqueue_many([remind.args(order)])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    first: Receipt = many[0]  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    assert [text, handle, first] == []


async def a_handle_that_nobody_awaits(order: Order, today: date) -> None:
    send_invoice.enqueue(order, today)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
