"""A tenant that uses the ids, names and cursors of another learns and changes nothing (T1, P12).

Every route of the OpenAPI document and every page is called with everything that the other tenant has. The answer must
be the one for an id that does not exist, made by the same statements, so that its time says nothing either; no byte of
an answer may be the other tenant's; and no row of it may change.
"""

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

import httpx2
import pytest
from fastapi import FastAPI

from ondot.model.ids import DEFAULT_TENANT, TenantNo
from ondot.store.database import Database
from ondot.telemetry.log import get_logger
from ondot.ui.pages import PAGES
from tests.api.two_tenants import Inhabitant, add_tenant, build_app, fill, inhabit
from tests.proves import proves
from tests.store.test_tenants_in_sql import OF_TENANTS
from tests.world import World

log = get_logger()

SECOND: Final = TenantNo(2)
NEVER_FILLED: Final = {
    "ready": "rows come and go with the queue",
    "line": "rows come and go with the queue",
    "gate": "rows come and go with the queue",
    "slot": "rows come and go with the queue",
    "gated": "rows come and go with the queue",
    "waiting": "rows come and go with the queue",
    "tenant_limit": "counts",
    "tenant_running": "counts",
    "audit_open": "an entry is in it until it is sealed",
}
BODIES: Final[dict[str, list[Any]]] = {
    "POST /v1/jobs": [{"name": "mine", "function": "f", "every": "1h", "key": "{text}"}],
    "POST /v1/jobs/batch": [{"jobs": [{"name": "mine", "function": "f", "unique": "{text}"}]}],
    "POST /v1/workflows": [{"name": "mine", "steps": {"a": {"function": "f"}}, "every": "1h", "key": "{text}-mine"}],
    "POST /v1/jobs/wait": [{"ids": ["{id}"], "wait": 0}],
    "PUT /v1/jobs/{id}": [{"name": "stolen", "function": "f", "every": "1h"}],
    "PATCH /v1/jobs/{id}": [{"name": "stolen"}],
    "POST /v1/jobs/{id}/resume": [None, {"missed": "run"}],
    "POST /v1/jobs/{id}/run": [None, {"payload": {"stolen": True}}],
    "POST /v1/jobs/{id}/backfill": [{"from_at": "{before}", "to_at": "{now}"}],
    "POST /v1/schedules/preview": [{"cron": "0 9 * * *"}],
    "POST /v1/events": [{"specversion": "1.0", "id": "{text}", "source": "{text}", "type": "{text}"}],
    "POST /v1/executions/{id}/cancel": [None],
    "POST /v1/executions/{id}/retry": [None, {"version": "current"}],
    "POST /v1/runs/{id}/retry": [None, {"from": ["{text}"]}],
    "POST /v1/runs/{id}/rerun": [None, {"from": ["{text}"], "version": "latest"}],
    "POST /v1/runs/{id}/give-up": [None],
    "POST /v1/runs/{id}/pause": [None],
    "POST /v1/runs/{id}/resume": [None],
    "POST /v1/runs/{id}/cancel": [None],
    "PATCH /v1/runs/{id}/steps/{name}": [{"concurrency": 1}],
    "POST /v1/runs/{id}/steps/{name}/approve": [None, {"reason": "stolen"}],
    "POST /v1/runs/{id}/steps/{name}/reject": [None],
    "POST /v1/runs/{id}/steps/{name}/link": [None],
    "POST /v1/runs/{id}/skip": [{"step": "{text}"}],
    "POST /v1/runs/{id}/result": [{"step": "{text}", "result": 1}],
    "POST /v1/dead-letters/replay": [{"ids": ["{id}"]}, {"filter": {"job_id": "{id}"}, "dry_run": True}],
    "POST /v1/dead-letters/discard": [{"ids": ["{id}"], "reason": "stolen"}],
    "POST /v1/bulk": [
        {"of": "jobs", "action": "delete", "ids": ["{id}"], "dry_run": True},
        {"of": "executions", "action": "cancel", "ids": ["{id}"]},
    ],
    "POST /v1/bulk/{id}/stop": [None],
    "POST /v1/bulk/{id}/undo": [None],
    "PATCH /v1/pools/{name}": [{"concurrency": 1}],
    "POST /v1/keys": [{"name": "{text}", "role": "viewer"}],
    "POST /v1/keys/{id}/rotate": [None, {"overlap": 0}],
    "PUT /v1/secrets/{name}": [{"value": "mine-alone"}],
    "POST /v1/webhooks/signing-secret/rotate": [None],
    "POST /v1/events/try": [{"event": {"type": "{text}"}}],
    "POST /v1/events/{id}/replay": [{"job_id": "{id}"}],
    "POST /v1/hooks": [{"name": "{text}", "type": "a.b", "signature": "github"}],
    "POST /v1/hooks/{id}/rotate": [None, {"overlap": 0}, {"secret": "a long secret"}],
    "POST /v1/views": [{"name": "{text}", "of": "jobs", "q": "{text}"}],
    "PATCH /v1/views/{id}": [{"q": "{text}"}, {"shared": True}],
    "POST /v1/pings": [{"name": "{text}", "period": "1d"}],
    "POST /v1/pings/{name}/rotate": [None],
    "POST /v1/alerts": [{"name": "{text}", "when": {"failing": {"in_a_row": 3}}, "scope": {"jobs": ["{text}"]}}],
    "POST /v1/alerts/preview": [
        {"name": "{text}", "when": {"failing": {"in_a_row": 1}}, "scope": {"jobs": ["{id}"]}},
        {"name": "{text}", "when": {"quota": {}}},
    ],
    "PATCH /v1/alerts/{id}": [{"notify": ["{text}"]}, {"for": 60}],
    "POST /v1/alerts/{id}/mute": [{"for": 60}],
    "POST /v1/incidents/{id}/acknowledge": [None],
    "POST /v1/incidents/{id}/resolve": [None, {"note": "{text}"}],
    "PUT /v1/connections/{name}": [{"kind": "redis", "url": "redis://10.0.0.1"}],
    "POST /v1/connections/{name}/test": [None],
    "PUT /v1/sinks/{name}": [{"types": ["ondot.*"], "webhook": {"url": "https://example.com"}}],
    "POST /v1/sinks/{name}/pause": [None],
    "POST /v1/sinks/{name}/resume": [None],
    "POST /v1/sinks/{name}/test": [None],
    "POST /v1/channels": [{"name": "{text}", "email": {"to": ["a@example.com"]}}],
    "PATCH /v1/channels/{name}": [{"email": {"to": ["a@example.com"]}}],
    "POST /v1/channels/{name}/test": [None],
    "POST /v1/users": [{"email": "{text}@example.com", "role": "viewer"}],
    "PATCH /v1/users/{id}": [{"role": "admin"}, {"state": "DISABLED"}],
    "POST /v1/users/{id}/reset": [None],
    "POST /v1/tenants": [{"name": "{text}"}],
    "PATCH /v1/tenants/{name}": [{"weight": 100}],
}
"""What is sent with a request. `{id}` and `{text}` are filled with what the other tenant has. A route with a body that
is not listed fails the test."""
MAKES: Final = frozenset(
    {
        "POST /v1/jobs",
        "POST /v1/jobs/batch",
        "POST /v1/workflows",
        "POST /v1/events",
        "POST /v1/alerts",
        "POST /v1/alerts/preview",
        "POST /v1/channels",
        "POST /v1/pings",
        "POST /v1/views",
        "POST /v1/hooks",
        "POST /v1/keys",
        "POST /v1/schedules/preview",
        "POST /v1/users",
        "PUT /v1/connections/{name}",
        "PUT /v1/secrets/{name}",
        "PUT /v1/sinks/{name}",
    }
)
"""Routes that succeed with a foreign text: names are free to use."""
NAMES_NOTHING: Final = frozenset({"POST /v1/webhooks/signing-secret/rotate"})
"""Routes that change what is the attacker's own, and name nothing: each answer differs from the one before."""
ID_PARAMETERS: Final = frozenset({"job_id", "subject", "cursor", "parent", "run"})
_ID: Final = re.compile(r'"(\w+)": "([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"')
TEXT_PARAMETERS: Final = frozenset({"name", "q", "pool", "label", "fingerprint", "action", "type", "source", "subject"})


@dataclass(frozen=True, slots=True)
class Operation:
    method: str
    path: str
    parameters: tuple[tuple[str, str], ...]
    has_body: bool

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"

    def names_of(self, place: str) -> list[str]:
        return [name for name, where in self.parameters if where == place]


@dataclass(frozen=True, slots=True)
class Belongings:
    """What a tenant has: its ids and its texts, from all its rows."""

    ids: list[UUID]
    texts: list[str]


def operations_of(app: FastAPI) -> list[Operation]:
    found = [
        Operation(
            method.upper(),
            path,
            tuple((one["name"], one["in"]) for one in operation.get("parameters", ())),
            "requestBody" in operation,
        )
        for path, methods in app.openapi()["paths"].items()
        for method, operation in methods.items()
    ]
    pages = ["/", "/schedules", *(page.path for page in PAGES)]
    shown = [
        Operation("GET", path, (("id", "path"),) if "{id}" in path else (("cursor", "query"),), False) for path in pages
    ]
    # Last: what the attacker makes under the other's names would be in its own lists.
    return sorted(found + shown, key=lambda operation: operation.name in MAKES)


@asynccontextmanager
async def two_tenants(world: World) -> AsyncIterator[tuple[FastAPI, Inhabitant, Inhabitant]]:
    await add_tenant(world, DEFAULT_TENANT, "canaryaaown")
    await add_tenant(world, SECOND, "canarybbown")
    app = build_app(world)
    first = await inhabit(world, app, DEFAULT_TENANT, "canaryaa")
    second = await inhabit(world, app, SECOND, "canarybb")
    async with first.http, second.http:
        await fill(first)
        await fill(second)
        yield app, first, second


async def rows_of(world: World, tenant_no: TenantNo) -> dict[str, list[str]]:
    """Every row of a tenant, but for what time and use change by themselves."""
    found = {}
    for table in sorted(OF_TENANTS):
        rows = await world.fetch(
            f"SELECT (to_jsonb(t) - 'last_used_at')::text AS row FROM ondot.{table} t WHERE tenant_no = $1 ORDER BY 1",
            tenant_no,
        )
        found[table] = [row["row"] for row in rows]
    return found


def belongings_of(rows: dict[str, list[str]], canary: str, without: set[UUID]) -> Belongings:
    """The first id of each column of each table, and every text."""
    ids: dict[tuple[str, str], UUID] = {}
    for table, stored in rows.items():
        for column, value in (found for row in stored for found in _ID.findall(row)):
            if UUID(value) not in without and UUID(value).int:  # zero: the window of events without a key
                ids.setdefault((table, column), UUID(value))
    texts = set(re.findall(rf"{canary}[a-z-]*", "\n".join(row for table in rows.values() for row in table)))
    return Belongings(sorted(set(ids.values())), sorted(texts))


def ids_in(rows: dict[str, list[str]], without: set[UUID]) -> list[str]:
    """Every id of every row."""
    found = {value for table in rows.values() for row in table for _, value in _ID.findall(row)}
    return sorted(found - {str(id_) for id_ in without} - {str(UUID(int=0))})


@contextmanager
def statements(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the SQL blocks that run."""
    names: list[str] = []
    original = Database.connection

    def log(record: Any) -> None:
        if found := re.search(r"-- name: (\w+)", record.query):  # not what asyncpg asks for itself
            names.append(found[1])

    @asynccontextmanager
    async def logged(self: Database) -> AsyncIterator[Any]:
        async with original(self) as connection:
            connection.add_query_logger(log)
            try:
                yield connection
            finally:
                connection.remove_query_logger(log)

    with monkeypatch.context() as patch:
        patch.setattr(Database, "connection", logged)
        yield names


def filled(template: Any, **values: str) -> Any:
    if isinstance(template, str):
        for name, value in values.items():
            template = template.replace(f"{{{name}}}", value)
        return template
    if isinstance(template, list):
        return [filled(item, **values) for item in template]
    if isinstance(template, dict):
        return {name: filled(value, **values) for name, value in template.items()}
    return template


def requests_of(operation: Operation, id_: UUID, text: str, world: World) -> Iterator[dict[str, Any]]:
    """The requests of one operation that name an id or a text, by path, query and body."""
    places = operation.names_of("path")
    path = operation.path
    for place in places:
        path = path.replace(f"{{{place}}}", text if place == "name" else str(id_))
    values = {"id": str(id_), "text": text, "now": world.now.isoformat(), "before": world.after(-7200).isoformat()}
    for body in BODIES.get(operation.name, [None]):
        yield {"method": operation.method, "url": path, "json": filled(body, **values)}
    for parameter in operation.names_of("query"):
        if parameter in ID_PARAMETERS | TEXT_PARAMETERS:
            value = str(id_) if parameter in ID_PARAMETERS else text
            value = f"{value}:{value}" if parameter == "label" else value
            yield {"method": operation.method, "url": path, "params": {parameter: value}}
    if "Idempotency-Key" in operation.names_of("header"):
        values["text"] += "-again"
        for body in BODIES.get(operation.name, [None]):
            headers = {"idempotency-key": f"{text.partition('-')[0]}-request"}
            yield {"method": operation.method, "url": path, "json": filled(body, **values), "headers": headers}


def pairs_of(operation: Operation, theirs: Belongings) -> list[tuple[UUID, str]]:
    """Each id with one text, and each text with one id."""
    is_by_text = "name" in operation.names_of("path") or operation.name in MAKES
    by_id = [] if is_by_text else [(id_, theirs.texts[0]) for id_ in theirs.ids]
    return by_id + [(theirs.ids[0], text) for text in theirs.texts]


def difference(one: tuple[int, str], other: tuple[int, str]) -> str:
    """Where two answers differ; empty if they do not."""
    if one == other:
        return ""
    at = next((n for n, (a, b) in enumerate(zip(one[1], other[1], strict=False)) if a != b), 0)
    return f"{one[0]} and {other[0]}: {one[1][at - 60 : at + 60]!r} and {other[1][at - 60 : at + 60]!r}"


def unknown_beside(id_: UUID) -> UUID:
    """An id that does not exist, of the same instant: as a cursor, it is at the same place."""
    return UUID(int=id_.int ^ 0xFFFF)


def shape_of(answer: httpx2.Response, said: str) -> tuple[int, str]:
    """An answer without what the request said itself, and without what differs between any two requests."""
    text = answer.text.replace(said, "…")
    # A near name is one of the caller's own: that of another tenant would be found as its canary.
    text = re.sub(r" Did you mean '[^']*'\?", "", text)
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "id", text)
    return answer.status_code, re.sub(
        r"token=[\w-]+|whsec_[^\"]+|data-mark=.\w+|ondk_\w+|ond[hp]_\w+|secret\":\"[\w-]+|[0-9T:.-]{15,40}Z?", "…", text
    )


@proves("T1", "P12")
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("attacked", [DEFAULT_TENANT, SECOND])
async def test_another_tenants_ids_names_and_cursors_have_no_effect_and_reveal_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, attacked: TenantNo, record_property: Any
) -> None:
    for name in ("store.lookup.CACHED_S", "flow.known_functions.CACHED_S", "flow.known_functions.LOOK_AGAIN_S"):
        monkeypatch.setattr(f"ondot.{name}", 3600.0)
    # The attacks create more than a tenant may have.
    monkeypatch.setattr("ondot.flow.sinks.manage.MOST", 100_000)
    monkeypatch.setattr("ondot.flow.connections.manage.MOST", 100_000)
    # How many statements a search or a report takes depends on how fast they are: here on the rows alone.
    for module in ("search_walk", "report"):
        monkeypatch.setattr(f"ondot.store.{module}.time", SimpleNamespace(monotonic=lambda: 0.0))
    cases: Counter[str] = Counter()
    async with two_tenants(world) as (app, first, second):
        victim, attacker = (first, second) if attacked == DEFAULT_TENANT else (second, first)
        before = await rows_of(world, victim.tenant_no)
        empty = {table for table, rows in before.items() if not rows} - NEVER_FILLED.keys()
        assert not empty, f"fill() makes no row of: {sorted(empty)}"
        of_the_fleet = {row["id"] for row in await world.fetch("SELECT id FROM ondot.worker")}
        theirs = belongings_of(before, victim.canary, without=of_the_fleet)
        secrets = [victim.canary, *ids_in(before, of_the_fleet)]
        await app.state.services.functions.of(attacker.tenant_no)  # remembered from here on
        with statements(monkeypatch) as ran:
            for operation in operations_of(app):
                assert not operation.has_body or operation.name in BODIES, f"BODIES lacks {operation.name}"
                for id_, text in pairs_of(operation, theirs):
                    nobodys = f"canaryzz-{cases.total()}"
                    foreign = requests_of(operation, id_, text, world)
                    unknown = requests_of(operation, unknown_beside(id_), nobodys, world)
                    for one, other in zip(foreign, unknown, strict=True):
                        if "headers" in one:  # else the attacker's own, of the case before
                            await world.fetch("DELETE FROM ondot.idempotency WHERE tenant_no = $1", attacker.tenant_no)
                        ran.clear()
                        answer = await attacker.http.request(**one)
                        for_foreign = list(ran)
                        ran.clear()
                        expected = await attacker.http.request(**other)
                        for_unknown = list(ran)
                        cases[operation.name] += 1
                        what = f"{operation.name} {one}"
                        assert answer.status_code < 500, f"{what}: {answer.text}"
                        if operation.name in NAMES_NOTHING:
                            expected, for_unknown = answer, for_foreign
                        assert not difference(shape_of(answer, text), shape_of(expected, nobodys)), what
                        if operation.name not in MAKES:
                            assert for_foreign == for_unknown, what
                        sent = json.dumps(one, default=str)
                        revealed = [word for word in secrets if word in answer.text and word not in sent]
                        assert not revealed, f"{what} reveals {revealed}: {answer.text[:500]}"
                assert await rows_of(world, victim.tenant_no) == before, f"{operation.name} changed the other tenant"
    log.info("swap.tried", cases=cases.total(), operations=len(cases))
    record_property("cases", cases.total())
