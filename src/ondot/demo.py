"""A few jobs for `ondot up --demo`: each shows one thing that ondot does. They use hardly any processor time.

The worker registers the functions with their schedules; `seed` adds three more jobs and an alert through the API, as
any program could. Recurring jobs have a key, so that a restart finds them again and creates no duplicates.
"""

import asyncio
import json
import urllib.request
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any
from urllib.error import HTTPError

from ondot import Context, GiveUp, Ondot, Workflow
from ondot.model.ids import instant_of
from ondot.proxies import open_url
from ondot.sdk.client import Client

SEED_TIMEOUT_S = 10
HOUR = timedelta(hours=1)
"""Misses that are less than half an hour apart would become one long incident."""
EVERY = timedelta(seconds=30)

app = Ondot()


@app.job
async def hello(name: str = "world") -> str:
    """Says hello when it is run: it has no schedule. Run it from the API, the command line or Python."""
    return f"Hello, {name}!"


@app.job(every="5s")
async def pulse(ctx: Context) -> dict[str, Any]:
    """Runs every five seconds and returns the time it was due: the result is stored with the execution."""
    return {"due": ctx.fire_at.isoformat()}


@app.job(cron="* * * * *", timezone="Europe/Berlin")
async def minute_report(ctx: Context, region: str = "eu") -> dict[str, Any]:
    """A report every full minute, Berlin time. It takes eight seconds and reports its progress."""
    chapters = ("orders", "payments", "returns", "stock", "visits", "mails", "refunds", "summary")
    for done, chapter in enumerate(chapters):
        ctx.progress(done / len(chapters), f"writing the chapter on {chapter}")
        ctx.log(f"chapter {done + 1}", subject=chapter)
        await asyncio.sleep(1)
    ctx.progress(1.0, "done")
    return {"region": region, "chapters": len(chapters)}


@app.job(every="20s", retries=4)
async def moody_service(ctx: Context) -> str:
    """Every second run fails at its first attempt, and the retry succeeds: nobody has to be woken."""
    if ctx.attempt == 1 and _twenties(ctx.fire_at) % 2:
        raise ConnectionError("the service hung up: try again in a moment")
    return f"answered at attempt {ctx.attempt}"


@app.job(every=EVERY, expect={"start_within": "5s", "end_within": "4s"})
async def backup(ctx: Context) -> str:
    """Should be done four seconds after it is due. The first run takes longer, and one in each hour after it: the alert
    `late backups` opens an incident on the first page. The next run is in time, and the incident is over soon after."""
    await asyncio.sleep(7 if is_slow(ctx) else 1)
    return "copied 3 tables"


def is_slow(ctx: Context) -> bool:
    """By the age of the job, which its id has, so that the first start shows it at once. Its fires count from an
    instant some milliseconds before or after that: hence half a period more."""
    return (ctx.fire_at - instant_of(ctx.job_id) + EVERY / 2) % HOUR // EVERY == 1


@app.job(every="2m", retries=2)
def doomed_import(ctx: Context) -> None:
    """Always fails, so that its executions end as dead letters, which wait for a person."""
    ctx.log("reading customers.csv", attempt=ctx.attempt)
    raise ValueError("line 17 of customers.csv has no e-mail address")


@app.job
async def fetch_orders(ctx: Context) -> dict[str, Any]:
    """The first step of the workflow `orders`: its result is the list that the next one maps over."""
    number = int(ctx.fire_at.timestamp()) // 30
    orders = [f"order-{number}-{n}" for n in range(1, 4 + number % 3)]
    return {"orders": orders, "is_express": number % 2 == 0, "card": "declined" if number % 3 == 0 else "valid"}


@app.job(retry={"max_retries": 3, "backoff": "fixed", "initial": "2s"})
async def pack(ctx: Context, order: str) -> str:
    """Runs once for each order. Every fourth parcel slips at the first attempt, and is packed at the second."""
    await asyncio.sleep(0.3)
    if ctx.attempt == 1 and sum(map(ord, order)) % 4 == 0:
        raise RuntimeError(f"the parcel of {order} slipped: pack it again")
    return f"parcel of {order}"


@app.job
async def send(parcels: int, by: str) -> str:
    """Two steps call it, and a condition decides which one runs: the other is skipped."""
    await asyncio.sleep(0.5)
    return f"{parcels} parcels by {by}"


@app.job
async def charge(parcels: int, card: str) -> str:
    """Every third run the card is declined. A step that handles this failure runs, and the run succeeds."""
    if card == "declined":
        raise GiveUp("the card was declined")
    return f"charged for {parcels} parcels"


@app.job
async def ask_for_another_card() -> str:
    """Runs if `charge` has failed, and handles that failure."""
    return "the customer was asked for another card"


@app.workflow(every="30s", overlap="skip")
def orders(w: Workflow) -> None:
    """Branches, maps over a list, fails now and then, and recovers by itself."""
    found = w.step(fetch_orders)
    packed = w.map(pack, over=found.result["orders"], concurrency=2)
    is_express = found.result["is_express"]
    express = w.step(send, name="express", after=packed, if_=is_express.matches(True), parcels=packed.count, by="bike")
    parcel = w.step(send, name="parcel", after=packed, if_=is_express.matches(False), parcels=packed.count, by="van")
    sent = w.join("sent", after=[express, parcel], when="no_failure")
    paid = w.step(charge, after=sent, parcels=packed.count, card=found.result["card"])
    w.step(ask_for_another_card, after=paid, when="failure", handles=True)


@app.job
async def place_order(ctx: Context, url: str) -> dict[str, Any]:
    """Sends an event, as a shop would. Only an order of 100 and more starts `large_order`."""
    number = int(ctx.fire_at.timestamp()) // 20
    order = {"order": f"order-{number}", "amount": 40 + number % 3 * 60}
    async with Client(url) as client:
        sent = await client.send_event({"type": "demo.order.placed", "source": "/demo/shop", "data": order})
    return {**order, "started": sent["executions"]}


@app.job(event={"type": "demo.order.placed", "filter": {"data": {"amount": [{"numeric": [">=", 100]}]}}})
async def large_order(order: str, amount: int) -> str:
    """Has no schedule: an event starts it, and its arguments are the data of the event."""
    return f"{order} of {amount} gets a letter of thanks"


def seed(url: str) -> None:
    """Create jobs through the API of the server at `url`: a call to itself every 15 s, a hello in 30 s, and orders; and
    an alert. It has no channel, so that nothing needs to be set up: its incidents are only shown.

    The hello has no key, so each start creates a new one: a one-time job runs only once.
    """
    with suppress(HTTPError):  # it exists: from an earlier start, and perhaps changed since
        _post(f"{url}/v1/alerts", {"name": "late backups", "when": {"expectation": {}}, "scope": {"jobs": ["backup"]}})
    for body in (
        {
            "key": "demo-watch-myself",
            "name": "watch_myself",
            "every": "15s",
            "target": {"http": {"url": f"{url}/livez", "method": "GET"}},
        },
        {
            "key": "demo-place-order",
            "name": "place_order",
            "every": "20s",
            "target": {"function": "place_order"},
            "payload": {"url": url},
        },
        {
            "name": "hello_once",
            "in": "30s",
            "target": {"function": "hello"},
            "payload": {"name": "newcomer"},
        },
    ):
        _post(f"{url}/v1/jobs", body)


def _post(address: str, body: dict[str, Any]) -> None:
    request = urllib.request.Request(  # noqa: S310 - the address of the server that was just started
        address, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    with open_url(request, SEED_TIMEOUT_S):
        pass


def _twenties(at: datetime) -> int:
    return int(at.timestamp()) // 20
