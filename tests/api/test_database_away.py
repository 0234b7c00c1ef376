"""PostgreSQL is stopped under an API that served: every route and page says so promptly, and comes back by itself."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from ondot.embedded.server import EmbeddedPostgres
from ondot.flow.days import make_days
from ondot.kms import generate_key
from ondot.store.database import Database, open_database
from ondot.store.migrate import migrate_up
from ondot.testing.server import FAST, fastest_directory
from tests.proves import proves
from tests.servers import settings_for
from tests.ui.serving import build

PAGES = ("/", "/jobs", "/jobs/{id}", "/executions", "/executions/{id}", "/fleet", "/dead-letters")
POSTS = {
    "/v1/jobs": {"function": "f"},
    "/v1/jobs/batch": {"jobs": [{"function": "f", "every": "1m"}]},
    "/v1/jobs/{id}/run": {},
    "/v1/executions/{id}/retry": {},
    "/v1/executions/{id}/cancel": {},
    "/v1/dead-letters/replay": {"ids": ["019a1de9-4d8d-7d9d-8dd7-1801991e16d7"]},
}
WITHOUT_A_DATABASE = (
    "/livez",
    "/metrics",
    "/docs",
    "/openapi.json",
    "/schedules",
    "/v1/sessions",  # a caller without a user has none
    "/v1/alerts/kinds",  # the same list on every server
)
AN_ID = "019a1de9-4d8d-7d9d-8dd7-1801991e16d7"
PROMPTLY_S = 15.0
"""Far less than a client waits, and more than a busy machine adds."""


@pytest.fixture
def postgres() -> Iterator[EmbeddedPostgres]:
    """Not the session's, which other tests use. Not under tmp_path: as root the server runs as another account,
    which may not enter it."""
    directory = Path(tempfile.mkdtemp(prefix="ondot-", dir=fastest_directory()))
    directory.chmod(0o755)
    server = EmbeddedPostgres(directory / "home", settings=FAST | {"max_connections": "30"})
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


def fill_path(path: str) -> str:
    for name in ("{id}", "{execution_id}", "{backfill_id}"):
        path = path.replace(name, AN_ID)
    return path.replace("{name}", "default").replace("/signing-secret", "/signing-secret?host=api.example.com")


async def call(client: httpx2.AsyncClient, method: str, path: str, body: object = None) -> httpx2.Response:
    began_s = time.monotonic()
    answer = await client.request(method, fill_path(path), json=body)
    assert time.monotonic() - began_s < PROMPTLY_S, f"{method} {path} was slow"
    return answer


async def serve(database: Database, auth: str) -> tuple[httpx2.AsyncClient, list[str]]:
    app, _ = build(database, database.settings.model_copy(update={"auth": auth}))
    gets = [path for path, methods in app.openapi()["paths"].items() if "get" in methods]
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    return httpx2.AsyncClient(transport=transport, base_url="http://localhost", timeout=30), gets


@proves("L4", "O5", "C7")
async def test_a_stopped_server_is_503_with_retry_after_on_every_route_until_it_is_back(
    postgres: EmbeddedPostgres,
) -> None:
    url = postgres.start()
    database = await open_database(settings_for(url, queue_ceiling=10, secret_key=generate_key()))
    await migrate_up(database)
    await make_days(database)
    await database.read_clock()
    client, gets = await serve(database, "off")
    keyed, _ = await serve(database, "on")
    assert (await call(client, "GET", "/v1/jobs")).status_code == 200
    postgres.stop()
    calls = [
        *(("GET", path, None) for path in (*gets, "/readyz", *PAGES) if path not in WITHOUT_A_DATABASE),
        *(("POST", *post) for post in POSTS.items()),
    ]
    assert {"/v1/nodes", "/v1/workers", "/v1/pools"} <= {path for _, path, _ in calls}
    for method, path, body in calls:
        answer = await call(client, method, path, body)
        assert answer.status_code == 503, f"{method} {path}: {answer.text}"
        assert int(answer.headers["retry-after"]) > 0
        is_page = path in PAGES
        assert answer.headers["content-type"].startswith("text/html" if is_page else "application/"), path
        assert ("Nothing is lost" in answer.text) == is_page
    for path in WITHOUT_A_DATABASE:
        assert (await call(client, "GET", path)).status_code == 200, path
    assert "ondot_database_up 0.0" in (await call(client, "GET", "/metrics")).text
    key = {"authorization": "Bearer ondot_" + "a" * 40}
    assert (await keyed.get("/v1/jobs", headers=key)).status_code == 503
    assert postgres.start() == url
    assert (await call(client, "POST", "/v1/jobs", POSTS["/v1/jobs"])).status_code == 201
    assert (await call(client, "GET", "/fleet")).status_code == 200
    await client.aclose()
    await keyed.aclose()
    await database.close()
