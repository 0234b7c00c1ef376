"""Where the calls of each tenant may go: real calls to servers on this machine."""

import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from ondot import Ondot
from ondot.app import open_targets
from ondot.flow.outgoing import Outgoing
from ondot.flow.vault import Vault
from ondot.kms import generate_key, open_kms
from ondot.model.addresses import Endpoint
from ondot.model.ids import DEFAULT_TENANT, TenantNo
from ondot.model.target import HttpTarget, ShellTarget
from ondot.model.urls import hosts_in
from ondot.roles.listen import ShownListener, find_addresses, listen
from ondot.targets.http.target import HttpCaller
from tests.conformance.calls import a_call, failure_of, result_of
from tests.proves import proves
from tests.receiver import Receiver, open_receiver
from tests.world import World


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with open_receiver() as receiver:
        yield receiver


@pytest.fixture
async def http(world: World) -> AsyncIterator[HttpCaller]:
    settings = world.database.settings.model_copy(update={"allow_private_targets": True})
    caller = HttpCaller(reach_of=Outgoing(replace(world.database, settings=settings)).reach_of)
    yield caller
    await caller.close()


async def add_tenant(world: World, **targets: Any) -> TenantNo:
    tenant_no = await world.add_tenant("acme")
    text = msgspec.json.encode(targets).decode()
    sql = "UPDATE ondot.tenant SET targets = $2::text::jsonb, changed_xid = pg_current_xact_id() WHERE tenant_no = $1"
    await world.fetch(sql, tenant_no, text)
    world.database.tenants._read_s = None
    return tenant_no


@proves("T3")
async def test_the_workers_setting_is_for_the_first_tenant_alone(
    world: World, http: HttpCaller, receiver: Receiver
) -> None:
    target = HttpTarget(url=receiver.url)
    assert result_of(await http.call(target, a_call(tenant_no=DEFAULT_TENANT)))["status"] == 204
    acme = await add_tenant(world)
    failed = failure_of(await http.call(target, a_call(tenant_no=acme)), "private_address")
    assert "targets.private_networks" in failed.error.message
    failure_of(await http.call(target, a_call(tenant_no=TenantNo(99))), "private_address")
    assert len(receiver.received) == 1


@proves("T3")
async def test_a_tenant_reaches_the_networks_that_its_row_names(
    world: World, http: HttpCaller, receiver: Receiver
) -> None:
    acme = await add_tenant(world, private_networks=["127.0.0.0/8"])
    for host in ("127.0.0.1", "localhost"):
        url = receiver.url.replace("127.0.0.1", host)
        assert result_of(await http.call(HttpTarget(url=url), a_call(tenant_no=acme)))["status"] == 204
    failure_of(await http.call(HttpTarget(url="http://10.1.2.3/"), a_call(tenant_no=acme)), "private_address")


@proves("T3", "P12")
async def test_postgresql_is_refused_to_other_tenants_in_every_notation(world: World, http: HttpCaller) -> None:
    acme = await add_tenant(world, private_networks=["0.0.0.0/0", "::/0"])
    [(host, port)] = set(hosts_in(world.url))
    for name in {host, "127.0.0.1", "localhost", "127.9.9.9", "2130706433", "0x7f.1", "[::1]", "[::ffff:7f00:1]", "0"}:
        url = f"http://{name}:{port}/"
        failed = failure_of(await http.call(HttpTarget(url=url), a_call(tenant_no=acme)), "private_address")
        assert "ondot's own or its database's" in failed.error.message, name
    # The first tenant runs the installation: it gets PostgreSQL's answer, which is no HTTP.
    report = await http.call(HttpTarget(url=f"http://127.0.0.1:{port}/"), a_call(tenant_no=DEFAULT_TENANT))
    assert getattr(report, "error", None) is None or report.error.code != "private_address"  # type: ignore[union-attr]


@proves("T3", "P12")
async def test_a_tenant_without_private_networks_does_not_find_out_where_postgresql_is(
    world: World, http: HttpCaller
) -> None:
    acme = await add_tenant(world)
    [(_, port)] = set(hosts_in(world.url))
    messages = set()
    for each in (port, 9):
        target = HttpTarget(url=f"http://127.0.0.1:{each}/")
        messages.add(failure_of(await http.call(target, a_call(tenant_no=acme)), "private_address").error.message)
    assert len(messages) == 1, messages


@proves("T3", "P12")
async def test_the_api_on_any_node_is_refused_to_other_tenants(
    world: World, http: HttpCaller, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme = await add_tenant(world, private_networks=["0.0.0.0/0", "::/0"])
    port = urlsplit(receiver.url).port
    assert port is not None
    listener = listen("0.0.0.0", 0)
    own_port = listener.getsockname()[1]
    shown = ShownListener(world.database, listener)
    await shown.one_pass()
    await shown.one_pass()
    sql = "INSERT INTO ondot.listener (id, host, addresses, port, url) VALUES (gen_random_uuid(), 'b', $1, $2, $3)"
    await world.fetch(sql, [ip_address("10.7.7.7")], 1200, f"http://api.example:{port}")

    real = socket.getaddrinfo

    def resolve(host: str, *arguments: Any, **named: Any) -> Any:
        hidden = {"api.example": "127.0.0.1", "innocent.example": "10.7.7.7"}
        return real(hidden.get(host, host), *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    refused = [
        *(
            f"http://{f'[{each}]' if ':' in each else each}:{own_port}/"
            for each in find_addresses()
            if each[:4] != "fe80"
        ),
        "http://10.7.7.7:1200/",
        "http://[::ffff:10.7.7.7]:1200/",
        "http://168232711:1200/",
        "http://innocent.example:1200/",
        receiver.url,
        f"http://localhost:{port}/",
    ]
    for url in refused:
        failed = failure_of(await http.call(HttpTarget(url=url), a_call(tenant_no=acme)), "private_address")
        assert "ondot's own" in failed.error.message, url
    assert receiver.received == []
    await shown.remove()
    assert await world.count("listener") == 1
    listener.close()


@proves("T3")
async def test_a_tenant_may_be_limited_to_hosts_and_kept_from_others(
    world: World, http: HttpCaller, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme = await add_tenant(
        world, private_networks=["127.0.0.0/8"], allow=["*.shop.example", "127.0.0.1/32"], deny=["bad.shop.example"]
    )
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda _host, *arguments, **named: real("127.0.0.5", *arguments, **named)
    )
    port = urlsplit(receiver.url).port

    async def call(host: str) -> Any:
        return await http.call(HttpTarget(url=f"http://{host}:{port}/"), a_call(tenant_no=acme))

    failure_of(await call("bad.shop.example"), "private_address")
    failure_of(await call("BAD.shop.example."), "private_address")
    failure_of(await call("shop.example"), "private_address")
    failure_of(await call("other.example"), "private_address")
    failure_of(await call("127.0.0.5"), "private_address")
    assert result_of(await call("127.0.0.1"))["status"] == 204
    assert receiver.received[0].headers["host"] == f"127.0.0.1:{port}"
    # A name in the list is called at whichever allowed address it has; nothing listens at this one.
    failure_of(await call("api.shop.example"), "connect")


@proves("T3")
async def test_a_tenant_whose_list_denies_a_network_does_not_reach_it_by_a_name(
    world: World, http: HttpCaller, receiver: Receiver
) -> None:
    acme = await add_tenant(world, private_networks=["127.0.0.0/8"], deny=["127.0.0.0/24"])
    port = urlsplit(receiver.url).port
    for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]"):
        report = await http.call(HttpTarget(url=f"http://{host}:{port}/"), a_call(tenant_no=acme))
        assert "targets" in failure_of(report, "private_address").error.message
    assert receiver.received == []


@proves("T3")
async def test_own_endpoints_are_those_of_the_database_url_and_of_the_server_itself(world: World) -> None:
    own = (await Outgoing(world.database).reach_of(TenantNo(2))).own
    [(_, port)] = set(hosts_in(world.url))
    assert Endpoint(ip_address("127.0.0.1"), port) in own
    assert Endpoint(ip_address("127.0.0.1"), 1200) in own


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("postgresql://u:p@h1:1,h2,[::1]:7/db", [("h1", 1), ("h2", 5432), ("::1", 7)]),
        ("postgresql:///db", [("127.0.0.1", 5432)]),
        ("postgresql://u@/db?host=/run/pg&port=6000", [("127.0.0.1", 6000)]),
        ("postgresql://u@/db?host=a,b&port=1,2", [("a", 1), ("b", 2)]),
        ("postgresql://h/d?sslmode=require", [("h", 5432)]),
    ],
)
def test_the_hosts_of_a_database_url_are_found(url: str, hosts: list[tuple[str, int]]) -> None:
    assert hosts_in(url) == hosts


@proves("T3", "T4")
async def test_a_worker_is_wired_with_the_rules_of_tenants_and_with_signatures(
    world: World, receiver: Receiver
) -> None:
    """`open_targets` is what a worker process calls: a rule that is not passed there holds nowhere."""
    settings = world.database.settings.model_copy(update={"allow_private_targets": True, "allow_shell": True})
    database = replace(world.database, settings=settings)
    acme = await add_tenant(world)
    vault = Vault(database, open_kms(generate_key()))
    async with open_targets(settings, Ondot(), 1, None, None, database, vault) as targets:
        http, shell = targets[HttpTarget], targets[ShellTarget]
        target, command = HttpTarget(url=receiver.url), ShellTarget(command=("true",))
        result_of(await http.call(target, a_call(tenant_no=DEFAULT_TENANT)))
        failure_of(await http.call(target, a_call(tenant_no=acme)), "private_address")
        result_of(await shell.call(command, a_call(tenant_no=DEFAULT_TENANT)))
        failure_of(await shell.call(command, a_call(tenant_no=acme)), "shell_not_allowed")
    [received] = receiver.received
    assert received.headers["webhook-signature"].startswith("v1,")
