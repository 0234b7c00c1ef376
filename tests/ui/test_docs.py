"""The API's reference at `/docs`: complete, made of this process's own files, with examples that work when pasted."""

import html
import json
import re
import shlex
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from itertools import pairwise
from urllib.parse import urlsplit

import pytest
from msgspec import structs

from ondot.document.parse import job_spec, job_specs
from ondot.document.requests import preview_request, run_payload
from ondot.kms import generate_key
from ondot.model.access import Role
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.keys import new_key
from ondot.store.keys import add_key
from ondot.store.known_functions import ALL_TENANTS, register_functions
from ondot.ui.examples import EXAMPLE_ID
from ondot.ui.reference import read_reference
from tests.proves import proves
from tests.ui.serving import Served, served
from tests.world import FUNCTIONS, OF_WORLD, World

READERS: dict[str, Callable[[object, datetime], object]] = {
    "/v1/jobs": job_spec,
    "/v1/jobs/batch": job_specs,
    "/v1/schedules/preview": preview_request,
}
CREATES = {
    ("POST", "/v1/tenants"),
    ("PUT", "/v1/secrets/stripe"),
    ("POST", "/v1/channels"),
    ("POST", "/v1/pings"),
    ("PUT", "/v1/connections/kafka-main"),
    ("PUT", "/v1/sinks/events"),
}


@pytest.fixture
async def page(world: World) -> AsyncIterator[Served]:
    async with served(world.database) as page:
        yield page


class Call:
    """A curl command, as a shell parses it."""

    def __init__(self, line: str) -> None:
        curl, *words = shlex.split(line.replace("\\\n", " "))
        assert curl == "curl"
        self.method = words[words.index("-X") + 1] if "-X" in words else "POST" if "-d" in words else "GET"
        self.body = words[words.index("-d") + 1] if "-d" in words else None
        self.headers = [word for flag, word in pairwise(words) if flag == "-H"]
        (self.url,) = [word for word in words if word.startswith("http")]
        self.path = urlsplit(self.url).path


def calls(text: str) -> list[Call]:
    return [
        Call(html.unescape(found)) for found in re.findall(r"<pre[^>]*data-copy><code>(.*?)</code>", text, re.DOTALL)
    ]


@proves("O5")
async def test_every_operation_of_the_api_is_listed(page: Served) -> None:
    text = (await page.client.get("/docs")).text
    document = (await page.client.get("/openapi.json")).json()
    shown = re.sub(r"<wbr>", "", text)
    operations = [(method, path) for path, methods in document["paths"].items() for method in methods]
    assert len(operations) >= 15
    for method, path in operations:
        assert f'>{method.upper()}</span> <code class="path">{html.escape(path)}</code>' in shown
    ids = re.findall(r'\sid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', text)) <= set(ids)
    assert len(calls(text)) == len(operations)


@proves("O5")
async def test_every_field_of_a_job_is_listed_and_short_forms_have_their_own_list(page: Served) -> None:
    text = re.sub(r"<wbr>", "", (await page.client.get("/docs")).text)
    document = (await page.client.get("/openapi.json")).json()
    fields, shorts = text.split("<h4>Short forms</h4>", 1)
    for name, field in document["components"]["schemas"]["JobBody"]["properties"].items():
        is_short = field.get("description", "").startswith("Short for ")
        assert f"<code>{name}</code>" in (shorts if is_short else fields)
    for name in ("schedule.cron", "schedule.misfire.policy", "target.http.url", "retry.max_retries"):
        assert f'<th scope="row"><code>{name}</code>' in fields


@proves("O5")
async def test_the_docs_load_nothing_from_other_servers(page: Served) -> None:
    answer = await page.client.get("/docs")
    assert answer.status_code == 200
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|<script(?![^>]*\ssrc=)", answer.text)
    named = re.findall(r'(?:src|href|action)="([^"]*)"', answer.text)
    assert all(address.startswith(("/", "#")) and not address.startswith("//") for address in named)
    for address in {address for address in named if address.startswith("/")}:
        assert (await page.client.get(address)).status_code == 200


@proves("O5")
async def test_every_example_of_the_docs_is_accepted(world: World) -> None:
    world.database.settings = world.database.settings.model_copy(update={"secret_key": generate_key()})
    id_ = world.database.clock.new_id()
    key = new_key(id_)
    async with world.database.connection() as connection:
        await add_key(connection, id_, DEFAULT_TENANT, "docs", key, role=Role.OWNER)
        named = structs.replace(FUNCTIONS[0], name="daily_report")
        await register_functions(connection, ALL_TENANTS, OF_WORLD, [named])
    async with served(world.database, auth="on") as page:
        shown = calls((await page.client.get("/docs")).text)
        # The named tenant and secret are created first and deleted last.
        for call in sorted(shown, key=lambda call: (call.method == "DELETE", (call.method, call.path) not in CREATES)):
            assert call.url.startswith(page.url)
            headers = dict(line.replace("$ONDOT_API_KEY", key).split(": ", 1) for line in call.headers)
            # Connections and sinks are tested, too: not outside of this machine.
            body = call.body and call.body.replace("kafka-1.example.com", "127.0.0.1")
            body = body and body.replace("https://example.com/events", "http://127.0.0.1:9/events")
            answer = await page.client.request(call.method, call.url, content=body, headers=headers)
            # No object has the id of the examples: "not found" is the only error allowed.
            expected = {404} if EXAMPLE_ID in call.path else {200, 201, 202}
            assert answer.status_code in expected, f"{call.method} {call.path}: {answer.text}"


@proves("O5")
async def test_the_api_parses_the_body_of_every_example(page: Served) -> None:
    now = datetime(2026, 3, 4, tzinfo=UTC)
    read = set()
    for call in calls((await page.client.get("/docs")).text):
        if call.body is not None:
            body = json.loads(call.body)
            if call.path in READERS:
                READERS[call.path](body, now)
                read.add(call.path)
            elif call.path.endswith("/run"):
                assert run_payload(body) is not None
    assert read == set(READERS)


@proves("T1")
async def test_the_docs_need_no_key_and_their_examples_send_one_if_auth_is_on(world: World) -> None:
    async with served(world.database, auth="on") as page:
        answer = await page.client.get("/docs")
        assert answer.status_code == 200
        assert "ondot key create" in answer.text
        assert all("authorization: Bearer $ONDOT_API_KEY" in call.headers for call in calls(answer.text))


@proves("T1")
async def test_the_docs_are_refused_for_another_host(page: Served) -> None:
    answer = await page.client.get("/docs", headers={"host": "evil.example"})
    assert answer.status_code == 403
    assert "curl" not in answer.text


@proves("O5")
def test_a_hostile_address_stays_one_word_of_the_shell() -> None:
    document = {
        "info": {"title": "t", "version": "1"},
        "paths": {"/a/{id}": {"get": {"parameters": [{"name": "id", "in": "path"}], "responses": {}}}},
    }
    address = "http://x';touch${IFS}here;'"
    (chapter,) = read_reference(document, address, with_key=False).chapters
    assert shlex.split(chapter.operations[0].curl) == ["curl", f"{address}/a/{EXAMPLE_ID}"]
