"""Proxies of the environment, which must not be used for a server on this machine."""

import asyncio
from urllib.request import Request

import pytest

from ondot import demo
from ondot.doctor.examine import ask_server
from ondot.proxies import is_this_machine, open_url
from tests.proves import proves
from tests.receiver import open_receiver

PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")


@proves("O6")
@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.8.9.10", "localhost", "LOCALHOST.", "a.localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"],
)
def test_a_url_of_this_machine_is_recognised_in_every_spelling(host: str) -> None:
    assert is_this_machine(f"http://{host}:1200/livez")


@proves("O6")
@pytest.mark.parametrize("host", ["example.com", "10.0.0.1", "localhost.example.com", "[fe80::1]", ""])
def test_any_other_host_may_need_a_proxy(host: str) -> None:
    assert not is_this_machine(f"http://{host}:1200/livez")


@proves("O6")
async def test_ondot_reaches_its_own_server_although_a_proxy_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    async with open_receiver() as receiver:

        def ask() -> None:
            open_url(f"{receiver.url}/livez", 10.0).close()
            open_url(Request(f"{receiver.url}/livez", method="HEAD"), 10.0).close()
            demo.seed(receiver.url)
            ask_server(receiver.url)

        await asyncio.to_thread(ask)
        paths = [received.path for received in receiver.received]
    assert (paths[:2], set(paths[2:-1]), paths[-1]) == (["/livez", "/livez"], {"/v1/jobs", "/v1/alerts"}, "/readyz")


@proves("O6")
async def test_a_proxy_is_used_for_any_other_host(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_receiver() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        await asyncio.to_thread(lambda: open_url("http://ondot.example/livez", 10.0).close())
        assert [received.headers["host"] for received in proxy.received] == ["ondot.example"]
