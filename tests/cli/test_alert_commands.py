"""`/v1/alerts`, `/v1/channels`, `/v1/pings`, `/v1/incidents` and their commands: what is rejected, and what it says."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from ondot.flow.alerts.evaluate import Evaluator
from ondot.flow.channels.send import queue_message
from ondot.kms import generate_key
from tests.cli.running import Ran, ondot
from tests.proves import proves
from tests.ui.serving import Served, served
from tests.world import World

LONG = "x" * 10_000
FAILING = {"failing": {"in_a_row": 3}}
ID = "019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a"

BAD: list[tuple[str, dict[str, Any], int, str]] = [
    ("alerts", {"name": "a", "when": {"fails": {}}}, 422, "did you mean `failures`?"),
    ("alerts", {"name": "a", "when": {}}, 422, "exactly one of dead_letters, failing"),
    ("alerts", {"name": "a", "when": FAILING | {"quota": {}}}, 422, "exactly one of"),
    ("alerts", {"name": "a", "when": {"failing": {"in_a_row": -1}}}, 422, "1"),
    ("alerts", {"name": "a", "when": {"failing": {}}}, 422, "in_a_row"),
    ("alerts", {"name": "a", "when": {"failing": {"in_a_row": 3, "within": "1h"}}}, 422, "within"),
    ("alerts", {"name": "a", "when": {"lateness": {"over": "-5m"}}}, 422, "must be a duration"),
    ("alerts", {"name": "a", "when": {"lateness": {"over": "soon"}}}, 422, "must be a duration"),
    ("alerts", {"name": "", "when": FAILING}, 422, "name"),
    ("alerts", {"name": LONG, "when": FAILING}, 422, "name"),
    ("alerts", {"name": "a", "when": FAILING, "for": "-1m"}, 422, "must be a duration"),
    ("alerts", {"name": "a", "when": FAILING, "repeat": "1s"}, 422, "a minute to 30 days"),
    ("alerts", {"name": "a", "when": FAILING, "notify": ["nobody"]}, 422, "Use one of: ops."),
    ("alerts", {"name": "a", "when": FAILING, "notify": ["opps"]}, 422, "Did you mean 'ops'?"),
    ("alerts", {"name": "a", "when": FAILING, "notify": [LONG]}, 422, "notify"),
    ("alerts", {"name": "a", "when": FAILING, "scope": {"labels": {"team": LONG}}}, 422, "team"),
    ("alerts", {"name": "a", "when": {"missed_schedule": {}}, "for": "1h"}, 422, "must be less"),
    ("alerts", {"name": "taken", "when": FAILING}, 409, "Choose another name"),
    ("channels", {"name": "c"}, 422, "webhook"),
    ("channels", {"name": "c", "sms": {"to": "1"}}, 422, "webhook"),
    ("channels", {"name": "c", "email": {"to": ["a@b.example"]}, "slack": {"url": "https://a.example"}}, 422, "one"),
    ("channels", {"name": "", "email": {"to": ["a@example.com"]}}, 422, "a letter or digit first"),
    ("channels", {"name": LONG, "email": {"to": ["a@example.com"]}}, 422, "at most 63"),
    ("channels", {"name": "ops", "email": {"to": ["a@example.com"]}}, 409, "Choose another name"),
    ("channels", {"name": "c", "email": {"to": []}}, 422, "to"),
    ("channels", {"name": "c", "email": {"to": ["a@example.com\r\nBcc: b@example.com"]}}, 422, "plain e-mail address"),
    ("channels", {"name": "c", "webhook": {"url": "ftp://a.example"}}, 422, "http:// or https://"),
    ("channels", {"name": "c", "webhook": {"url": f"https://a.example/{LONG}"}}, 422, "url"),
    ("channels", {"name": "c", "slack": {"url": {"$secret": "none"}}}, 422, "Create it with `ondot secret set none`"),
    ("channels", {"name": "c", "pagerduty": {}}, 422, "routing_key"),
    ("pings", {"name": "p"}, 422, "either a `period` or a `schedule`"),
    ("pings", {"name": "p", "period": "-1d"}, 422, "must be a duration"),
    ("pings", {"name": "p", "period": "1d", "grace": "0s"}, 422, "for example"),
    ("pings", {"name": "p", "schedule": {"cron": "99 * * * *"}}, 422, "99"),
    ("pings", {"name": "p", "schedule": {"event": {"type": "x"}}}, 422, "use `cron`, `every` or `rrule`"),
    ("pings", {"name": "", "period": "1d"}, 422, "a letter or digit first"),
    ("pings", {"name": "nightly", "period": "1d"}, 409, "another name"),
    (f"incidents/{ID}/acknowledge", {}, 404, "There is no incident"),
    (f"incidents/{ID}/resolve", {"note": LONG}, 422, "note"),
]


@pytest.fixture
async def api(world: World) -> AsyncIterator[Served]:
    world.database.settings = world.database.settings.model_copy(update={"secret_key": generate_key()})
    async with served(world.database) as api:
        yield api


@proves("O4")
async def test_bad_alerts_channels_pings_and_notes_are_rejected_with_what_to_do(api: Served) -> None:
    async with httpx2.AsyncClient(base_url=f"{api.url}/v1", timeout=60) as http:
        await http.post("/channels", json={"name": "ops", "email": {"to": ["a@example.com"]}})
        assert (await http.post("/alerts", json={"name": "taken", "when": FAILING})).status_code == 201
        assert (await http.post("/pings", json={"name": "nightly", "period": "1d"})).status_code == 201
        wrong = []
        for path, body, status, words in BAD:
            answer = await http.post(f"/{path}", json=body)
            said = json.dumps(answer.json(), ensure_ascii=False)
            if answer.status_code != status or words not in said or len(answer.json().get("detail", LONG)) > 1_000:
                wrong.append((path, str(body)[:120], answer.status_code, said[:400]))
        assert wrong == [], "\n".join(map(str, wrong))
        for path in ("alerts", "channels", "pings"):
            assert len((await http.get(f"/{path}")).json()["items"]) == 1
        assert (await http.get("/incidents", params={"kind": "fails"})).status_code == 422
        assert (await http.get("/incidents", params={"cursor": "open.x"})).status_code == 422


@proves("O4")
async def test_alerts_and_incidents_are_commands_and_their_errors_name_the_flags(api: Served, world: World) -> None:
    async def run(*words: str, **more: Any) -> Ran:
        return await asyncio.to_thread(ondot, *words, url=api.url, **more)

    unknown = await run("alert", "create", "bi", "--when", "failing:in_a_row=3", "--notify", "ops")
    assert (unknown.code, "Create it with `ondot channel create`" in unknown.err) == (2, True), unknown.err
    negative = await run("alert", "create", "bi", "--when", "failing:in_a_row=-3")
    assert (negative.code, "--when" in negative.err) == (2, True), negative.err
    kind = await run("alert", "create", "bi", "--when", "fails")
    assert (kind.code, "did you mean `failures`?" in kind.err) == (2, True), kind.err
    secret = await run("channel", "create", "ops", "--slack", "--secret", "none")
    assert (secret.code, "ondot secret set none" in secret.err) == (2, True), secret.err
    preview = await run("alert", "create", "bi", "--when", "workers:below=1", "--preview")
    assert "It would open an incident now." in preview.out
    assert "alerts of this kind opened 0 incidents, whatever their scope." in " ".join(preview.out.split())
    made = await run("alert", "create", "bi", "--when", "workers:below=1", "--repeat", "never")
    assert made.code == 0, made.err
    shown = await run("alert", "get", "bi")
    assert "workers" in shown.out
    again = await run("alert", "create", "bi", "--when", "workers:below=1")
    assert (again.code, "Choose another name" in again.err) == (4, True), again.err
    assert await Evaluator(world.database, queue_message, rests=0).one_pass() == 0  # it names no channel
    listed = await run("incident", "list", "-o", "json")
    [incident] = json.loads(listed.out)["items"]
    for words in (("incident", "get", incident["id"]), ("incident", "ack", incident["id"], "--note", "on it")):
        ran = await run(*words)
        assert (ran.code, incident["title"] in ran.out or "cknowledged" in ran.out) == (0, True), ran.err
    report = await run("report")
    assert (report.code, incident["title"] in report.out) == (0, True), report.err
    assert (await run("incident", "resolve", incident["id"])).code == 0
    over = await run("incident", "resolve", incident["id"])
    assert (over.code, "over already" in over.err) == (4, True), over.err
