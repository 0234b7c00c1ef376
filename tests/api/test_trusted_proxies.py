"""The address in the audit log: of the client behind a proxy that is trusted, of the peer otherwise (T6)."""

import asyncio
import socket

import httpx2
import pytest

from ondot.api.auth import Auth
from ondot.api.dependencies import Services
from ondot.api.serve import serve
from ondot.api.server import build_api
from ondot.model.errors import Misconfigured
from ondot.settings import load_settings
from tests.api.conftest import caller_of
from tests.api.test_audit import key_of
from tests.proves import proves
from tests.world import World


@pytest.mark.parametrize(
    ("trusted", "address"),
    [
        (None, "127.0.0.1"),
        ("192.0.2.0/24", "127.0.0.1"),
        ("127.0.0.1", "203.0.113.9"),
        ("127.0.0.0/8,198.51.100.0/24", "203.0.113.9"),
    ],
)
@proves("T6")
async def test_forwarded_addresses_are_believed_of_trusted_proxies_only(
    world: World, trusted: str | None, address: str
) -> None:
    caller = caller_of(world, auth="on")
    headers = await key_of(caller, "ann")
    headers["x-forwarded-for"] = "10.6.6.6, 203.0.113.9" + (", 198.51.100.7" if trusted and "198" in trusted else "")
    settings = world.database.settings.model_copy(update={"trusted_proxies": trusted})
    app = build_api(Services(world.database, world.dispatcher, Auth(world.database, settings)))
    stop = asyncio.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        serving = asyncio.create_task(serve(app, listener, stop, settings.trusted_proxies))
        async with httpx2.AsyncClient(base_url=url, timeout=60) as client:
            body = {"name": "report", "function": "f", "cron": "0 9 * * *"}
            assert (await client.post("/v1/jobs", json=body, headers=headers)).status_code == 201
            [entry] = (await client.get("/v1/audit", headers=headers)).json()["items"]
        stop.set()
        await serving
    assert entry["address"] == address


@proves("T6")
def test_trusted_proxies_are_addresses_and_networks() -> None:
    assert load_settings(trusted_proxies="10.0.0.0/8, ::1").trusted_proxies == "10.0.0.0/8,::1/128"
    with pytest.raises(Misconfigured, match="TRUSTED_PROXIES"):
        load_settings(trusted_proxies="proxy.example.com")
