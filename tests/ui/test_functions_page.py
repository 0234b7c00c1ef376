"""The page of a function, sent as a browser without scripts sends it: a form made from the schema of its arguments."""

import re
from collections.abc import AsyncIterator
from datetime import date, datetime
from enum import Enum
from html import unescape
from typing import Any, Final

import msgspec
import pytest

from ondot.model.app_release import AppRelease
from ondot.model.ids import WorkerId
from ondot.sdk.app import Ondot
from ondot.sdk.declared import declare_functions
from ondot.store.known_functions import ALL_TENANTS, register_functions
from ondot.store.workers import register_worker
from ondot.ui.function_form import build_form, place_faults, read_payload
from tests.proves import proves
from tests.ui.serving import Served, served
from tests.world import DEFAULT_POOL, World

HOSTILE: Final = "<script>alert('x')</script>\"' hx-get=/v1/jobs"


class Tone(Enum):
    WARM = "warm"
    COLD = "cold"


def greet(
    name: str,
    age: int,
    tone: Tone = Tone.WARM,
    loud: bool = True,
    born: date | None = None,
    at: datetime | None = None,
    tags: list[str] | None = None,
    extra: dict[str, Any] | None = None,
) -> None:
    """Greet <b>somebody</b>."""


def anything(**others: Any) -> None: ...


@pytest.fixture
async def page(world: World) -> AsyncIterator[Served]:
    app = Ondot(name="shop")
    app.job(retries=0, timeout="90s")(greet)
    app.job(anything)
    app.job(name="a/b?c#d%20é")(lambda: None)
    release = AppRelease("shop", "7")
    async with world.database.connection() as connection:
        await register_functions(connection, ALL_TENANTS, release, declare_functions(app))
        id_ = WorkerId(world.database.clock.new_id())
        await register_worker(
            connection, id_, host="box", pid=1, release="0", pool_nos=[DEFAULT_POOL], slots=4, app=release
        )
    async with served(world.database) as served_page:
        yield served_page


async def send(page: Served, path: str, **fields: str) -> Any:
    data = {name.replace("__", "."): value for name, value in fields.items()}
    return await page.client.post(path, data=data, headers={"origin": page.url}, follow_redirects=False)


def faults_in(html: str) -> dict[str, str]:
    found = re.findall(r'<span class="fault" id="fault-([^"]+)">(.*?)</span>', html, re.DOTALL)
    return {name: unescape(re.sub("<[^>]+>", "", text)).strip() for name, text in found if text.strip()}


@proves("D1")
async def test_functions_are_listed_with_options_and_workers(page: Served) -> None:
    html = (await page.client.get("/functions")).text

    assert "1 worker" in html
    assert "timeout 90s, retries 0" in unescape(html)
    assert "&lt;b&gt;somebody" in html, "a docstring is text"
    assert "greet" not in (await page.client.get("/functions?q=any")).text
    assert "No function has nothing" in (await page.client.get("/functions?q=nothing")).text
    assert (await page.client.get("/functions/a%2Fb%3Fc%23d%2520%C3%A9")).status_code == 200
    assert "Did you mean" in unescape((await page.client.get("/functions/gret")).text)


@proves("D1")
async def test_each_argument_has_the_input_of_its_type(page: Served) -> None:
    html = (await page.client.get("/functions/greet")).text

    for expected in (
        r'<input type="text"[^>]* name="arg.name" aria-required="true"',
        r'<input type="number"[^>]* name="arg.age" aria-required="true"',
        r'<select name="arg.tone"',
        r'<option value="&#34;warm&#34;" selected>warm</option>',
        r'<input type="checkbox" value="yes" checked name="arg.loud"',
        r'<input type="date"[^>]* name="arg.born"',
        r'<input type="datetime-local"[^>]* name="arg.at"',
        r'<textarea[^>]* name="arg.tags"',
        r'<textarea[^>]* name="arg.extra"',
    ):
        assert re.search(expected, html), expected
    assert "script-src 'self'" in (await page.client.get("/functions/greet")).headers["content-security-policy"]


@proves("D1")
async def test_a_run_from_the_form_has_the_functions_options_and_leads_to_its_execution(
    page: Served, world: World
) -> None:
    fields = {"arg__name": "Ada", "arg__age": "36", "arg__tone": '"cold"', "arg__at": "2030-01-31T09:00"}
    answer = await send(page, "/functions/greet", **fields, arg__tags='["a"]')

    assert answer.status_code == 303, answer.text
    [execution] = await world.executions()
    assert answer.headers["location"] == f"/executions/{execution.id}"
    spec = (await world.job(execution.job_id)).spec
    assert (spec.retry.max_retries, spec.timeout_s) == (0, 90)
    assert msgspec.json.decode(spec.payload) == {
        "name": "Ada", "age": 36, "tone": "cold", "loud": False, "at": "2030-01-31T09:00:00Z", "tags": ["a"]
    }  # fmt: skip
    assert str(execution.id) in (await page.client.get("/functions/greet")).text


@proves("D1")
async def test_what_does_not_fit_is_said_at_its_input_and_nothing_is_lost(page: Served, world: World) -> None:
    fields = {"arg__name": HOSTILE, "arg__age": "old", "arg__tags": '["a", 1]', "arg__loud": "yes"}
    answer = await send(page, "/functions/greet", **fields)

    assert answer.status_code == 422
    faults = faults_in(answer.text)
    assert faults == {
        "arg.age": 'greet: age must be a whole number, got "old".',
        "arg.tags": "greet: tags.1 must be text, got 1.",
    }
    assert "<script>alert" not in answer.text
    assert HOSTILE in unescape(answer.text)
    assert 'value="yes" checked name="arg.loud"' in answer.text
    broken = await send(page, "/functions/greet", arg__name="Ada", arg__age="1", arg__tags="[")
    assert faults_in(broken.text)["arg.tags"].startswith("This is not JSON")
    missing = await send(page, "/functions/greet", arg__name="Ada")
    assert faults_in(missing.text) == {"arg.age": "greet: age is missing."}
    assert await world.executions() == []


@proves("D1")
async def test_a_function_of_any_arguments_takes_them_as_json(page: Served, world: World) -> None:
    assert "This is not JSON" in faults_in((await send(page, "/functions/anything", others="{")).text)["others"]
    assert "object" in faults_in((await send(page, "/functions/anything", others="[1]")).text)["others"]
    assert (await send(page, "/functions/anything", others='{"x": 1}')).status_code == 303
    assert (await send(page, "/functions/a%2Fb%3Fc%23d%2520%C3%A9", run="yes")).status_code == 303
    assert len(await world.executions()) == 2


def test_a_form_without_a_schema_is_one_input() -> None:
    form = build_form(None)
    assert (form.inputs, form.takes_others) == ((), True)
    assert read_payload(form, {}) == ({}, {})
    assert place_faults(form, []) == ({}, [])
