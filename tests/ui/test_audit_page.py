"""The page of the audit log: who changed what, before and after; filters, pages, hostile text shown as text (T6)."""

import re
from collections.abc import AsyncIterator
from datetime import timedelta
from html import unescape
from uuid import UUID

import pytest

from ondot.model.access import Role
from ondot.model.ids import DEFAULT_TENANT, INSTALLATION, TenantNo
from ondot.store.audit import By, record, record_all
from ondot.ui.audit import PAGE_SIZE, Query, parse_query, read_audit
from tests.api.keys import make_key_with
from tests.proves import proves
from tests.ui.serving import Served, served
from tests.world import World

HOSTILE = "<script>alert('x')</script>"
SUBJECT = UUID("019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a")


@pytest.fixture
async def page(world: World) -> AsyncIterator[Served]:
    async with served(world.database) as page:
        yield page


async def add(world: World, by: By, tenant_no: TenantNo = DEFAULT_TENANT, **values: dict[str, object]) -> None:
    async with world.database.connection() as connection:
        await record(connection, tenant_no, by, "job.update", SUBJECT, {"version": 2}, **values)


@proves("T6", "O5")
async def test_an_entry_shows_the_caller_the_reason_and_the_values_before_and_after(world: World, page: Served) -> None:
    by = By(HOSTILE, f"because {HOSTILE}", UUID(int=7), address="192.0.2.7", request_id="req-1")
    await add(world, by, before={"timeout_s": 1, "pool": None}, after={"timeout_s": 60, "pool": HOSTILE})
    html = (await page.client.get("/audit")).text
    assert HOSTILE not in html
    text = unescape(re.sub(r"<[^>]+>|\u200b|&#8203;|\s+", " ", html))
    for part in ("job.update", str(SUBJECT), "192.0.2.7", "req-1", "timeout_s", "version: 2"):
        assert part in text, part
    assert "<del>1</del> → <ins>60</ins>" in html
    assert f'href="/jobs/{SUBJECT}"' in html
    assert 'aria-current="page">Audit' in html


@proves("T6", "O5")
async def test_entries_are_filtered_and_shown_page_by_page(world: World) -> None:
    async with world.database.connection() as connection:
        await record_all(connection, DEFAULT_TENANT, "ann", "job.run", [(None, {})] * (PAGE_SIZE + 5))
    await world.advance(7200)
    await add(world, By("bob"))
    await add(world, By("eve"), TenantNo(2))
    first = await read_audit(world.database, DEFAULT_TENANT, Query())
    assert (len(first.rows), first.rows[0].actor, first.has_tenants) == (PAGE_SIZE, "bob", False)
    assert first.older is not None
    cursor = UUID(first.older.rpartition("=")[2])
    rest = await read_audit(world.database, DEFAULT_TENANT, Query(cursor=cursor))
    assert (len(rest.rows), rest.older) == (6, None)
    for query in (Query(actor="bob"), Query(action="job.update"), Query(subject=SUBJECT), Query(within="1h")):
        found = await read_audit(world.database, DEFAULT_TENANT, query)
        assert [row.actor for row in found.rows] == ["bob"], query
    assert parse_query({"subject": "x", "within": "2y", "action": "a\0b"}) == Query(action="ab")
    link = Query(actor="bob", within="1h").as_file(world.now, "csv")
    assert link.startswith("/v1/audit/export?actor=bob&from_at=")
    assert (world.now - timedelta(hours=1)).strftime("%H%%3A%M") in link


@proves("T6", "T7")
async def test_the_log_of_the_installation_is_a_page_of_owners_once_there_are_tenants(world: World) -> None:
    await add(world, By("boss"), INSTALLATION)
    owner = await make_key_with(world, Role.OWNER)
    admin = await make_key_with(world, Role.ADMIN)
    viewer = await make_key_with(world, Role.VIEWER)
    async with served(world.database, auth="on") as page:

        async def read(path: str, headers: dict[str, str]) -> tuple[int, str]:
            answer = await page.client.get(path, headers=headers)
            return answer.status_code, answer.text

        assert "/audit/installation" not in (await read("/audit", owner))[1]
        await world.add_tenant("acme")
        world.database.tenants.forget()
        assert "/audit/installation" in (await read("/audit", owner))[1]
        status, html = await read("/audit/installation", owner)
        assert (status, "boss" in html) == (200, True)
        status, html = await read("/audit", admin)
        assert (status, "boss" in html, "/audit/installation" in html) == (200, False, False)
        assert (await read("/audit/installation", admin))[0] == 403
        assert (await read("/audit", viewer))[0] == 403
        assert "/audit" not in (await read("/jobs", viewer))[1]
