"""Users and browsers for the tests of signing in: the whole application in this process, and clients that keep cookies
as a browser does and send the headers that a browser sends."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
from fastapi import FastAPI

from ondot.model.access import Role
from ondot.model.ids import DEFAULT_TENANT, TenantNo
from ondot.people.passwords import Passwords
from ondot.people.sessions import COOKIE
from ondot.store.database import Database
from ondot.store.users import NewUser, UserRow, add_user, get_user
from tests.ui.serving import build
from tests.world import World

URL = "http://127.0.0.1:1200"
PASSWORD = "nine tall mirrors"
SAME_ORIGIN = {"origin": URL, "sec-fetch-site": "same-origin", "sec-fetch-mode": "navigate"}

_HASHED: list[str] = []


async def hashed() -> str:
    """The hash of PASSWORD, computed once."""
    if not _HASHED:
        _HASHED.append(await Passwords().hash(PASSWORD))
    return _HASHED[0]


async def add(
    database: Database,
    email: str = "ada@example.com",
    role: Role = Role.VIEWER,
    tenant_no: TenantNo = DEFAULT_TENANT,
    *,
    with_password: bool = True,
) -> UserRow:
    password = await hashed() if with_password else None
    user = NewUser(database.clock.new_id(), tenant_no, email, email.partition("@")[0], role, "test", password)
    async with database.connection() as connection:
        assert await add_user(connection, user)
        row = await get_user(connection, tenant_no, user.id)
    assert row is not None
    return row


@dataclass(slots=True)
class Browser:
    """A client with its own cookies. `send` sends what a page of ondot would send."""

    http: httpx2.AsyncClient
    cookies: dict[str, str] = field(default_factory=dict)

    @property
    def cookie(self) -> str | None:
        return self.cookies.get(COOKIE)

    async def get(self, path: str, **headers: str) -> httpx2.Response:
        return await self._send("GET", path, {"sec-fetch-site": "none", "accept": "text/html"} | headers)

    async def submit(self, path: str, fields: dict[str, str], **headers: str) -> httpx2.Response:
        """A form of ondot's own page."""
        return await self._send("POST", path, SAME_ORIGIN | headers, data=fields)

    async def call(self, method: str, path: str, body: Any = None, **headers: str) -> httpx2.Response:
        """A script of ondot's own page."""
        more = {} if body is None else {"json": body}
        return await self._send(method, path, SAME_ORIGIN | {"sec-fetch-mode": "cors"} | headers, **more)

    async def sign_in(self, email: str = "ada@example.com", password: str = PASSWORD, **fields: str) -> httpx2.Response:
        return await self.submit("/sign-in", {"email": email, "password": password, **fields})

    async def _send(self, method: str, path: str, headers: dict[str, str], **options: Any) -> httpx2.Response:
        written = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        sent = {name.replace("_", "-"): value for name, value in headers.items() if value}
        if written:
            sent.setdefault("cookie", written)
        response = await self.http.request(method, path, headers=sent, **options)
        for line in response.headers.get_list("set-cookie"):
            name, _, rest = line.partition("=")
            value, _, attributes = rest.partition(";")
            assert name.startswith("__Host-ondot")
            assert {"Path=/", "HttpOnly", "Secure", "SameSite=Lax"} <= {part.strip() for part in attributes.split(";")}
            assert "domain" not in attributes.lower()
            if "Max-Age=0" in attributes:
                self.cookies.pop(name, None)
            else:
                self.cookies[name] = value
        return response


@dataclass(slots=True)
class Place:
    """An installation with keys required, as in production; `browser` opens it on the machine itself."""

    world: World
    app: FastAPI
    clients: list[httpx2.AsyncClient] = field(default_factory=list)

    @property
    def database(self) -> Database:
        return self.world.database

    def forget(self) -> None:
        """As if half a second had passed: sessions and tenants are read again."""
        services = self.app.state.services
        services.auth.sessions._lookup._cache.clear()
        services.auth._keyless._read_s = None
        self.database.tenants._read_s = None

    def browser(self, url: str = URL, address: str = "203.0.113.7") -> Browser:
        transport = httpx2.ASGITransport(app=self.app, raise_app_exceptions=False, client=(address, 50000))
        client = httpx2.AsyncClient(transport=transport, base_url=url)
        self.clients.append(client)
        return Browser(client)

    async def signed_in(self, role: Role, email: str | None = None, tenant_no: TenantNo = DEFAULT_TENANT) -> Browser:
        """The browser of a new user with this role."""
        email = email or f"{role.value}@example.com"
        await add(self.database, email, role, tenant_no)
        browser = self.browser()
        tenant = (await self.database.tenants.snapshot())[tenant_no].name if tenant_no != DEFAULT_TENANT else ""
        answer = await browser.sign_in(email, tenant=tenant)
        assert answer.status_code == 303, answer.text
        return browser


@asynccontextmanager
async def opened_place(world: World, **settings: Any) -> AsyncIterator[Place]:
    world.database.settings = world.database.settings.model_copy(update={"auth": "on"} | settings)
    app, feed = build(world.database, world.database.settings)
    place = Place(world, app)
    try:
        yield place
    finally:
        feed.close()
        for client in place.clients:
            await client.aclose()
