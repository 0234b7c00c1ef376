"""Without API keys: which accounts of a machine are answered. Real processes, with accounts of their own."""

import base64
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from ondot.model.errors import Unauthorized, Unavailable
from ondot.sdk.client import Client
from ondot.testing.server import fastest_directory
from tests.account.served import LET_IN, REFUSED, Server, serving_as
from tests.proves import proves

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run processes of other accounts")

OURS: Final = 41_001
OTHER: Final = 41_002
NOBODY: Final = 65_534

SEND_AND_CLOSE: Final = """
body = b'{"name": "x", "function": "f"}'
request = b"POST /v1/jobs HTTP/1.1\\r\\nhost: 127.0.0.1\\r\\ncontent-length: %d\\r\\n\\r\\n" % len(body) + body
with socket.create_connection((host, port)) as connection:
    connection.sendall(request)
print(json.dumps({}))
"""
HALF_CLOSED: Final = """
with socket.create_connection((host, port)) as connection:
    connection.sendall(b"GET /v1/pools HTTP/1.1\\r\\nhost: 127.0.0.1\\r\\n\\r\\n")
    connection.shutdown(socket.SHUT_WR)
    answer = connection.makefile().readline()
print(json.dumps({"status": int(answer.split()[1]) if answer else 0}))
"""
MAPPED: Final = 'print(json.dumps(ask(at=("::ffff:127.0.0.1", port), headers={"host": "127.0.0.1"})))'
RELAY: Final = """
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)

def carry(source, target):
    while data := source.recv(65536):
        target.sendall(data)
    target.shutdown(socket.SHUT_WR)

while True:
    client, _ = listener.accept()
    server = socket.create_connection((host, port))
    for pair in ((client, server), (server, client)):
        threading.Thread(target=carry, args=pair, daemon=True).start()
"""


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """Not pytest's own directories: those are closed to other accounts."""
    directory = Path(tempfile.mkdtemp(prefix="ondot-accounts-", dir=fastest_directory()))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[Server]:
    with serving_as(OURS, place / "ours") as server:
        yield server


@pytest.fixture(scope="module")
def of_root(place: Path) -> Iterator[Server]:
    with serving_as(0, place / "root") as server:
        yield server


@proves("T1")
def test_the_account_of_the_server_is_answered_and_no_other_not_even_root(server: Server) -> None:
    assert server.ask_as(OURS)["status"] == LET_IN
    for uid in (OTHER, NOBODY, 0):
        answer = server.ask_as(uid)
        assert answer["status"] == REFUSED
        assert str(server.home / "token") in answer["text"]
        assert "Basic" in answer["challenge"]


@proves("T1")
def test_the_same_holds_over_ipv6_and_for_an_account_that_stands_for_unknown_ones(place: Path) -> None:
    with serving_as(NOBODY, place / "nobody", "::1") as server:
        assert server.ask_as(NOBODY)["status"] == LET_IN
        for uid in (OTHER, 0):
            assert server.ask_as(uid)["status"] == REFUSED


@proves("T1")
def test_a_server_of_root_answers_root_alone(of_root: Server) -> None:
    assert of_root.ask_as(0)["status"] == LET_IN
    assert of_root.ask_as(OTHER)["status"] == REFUSED


@proves("T1")
def test_every_request_of_a_kept_connection_has_the_same_answer(server: Server) -> None:
    thrice = "print(json.dumps(ask(times=3)))"
    assert server.ask_as(OURS, thrice)["status"] == LET_IN
    assert server.ask_as(OTHER, thrice)["status"] == REFUSED


@proves("T1")
def test_the_token_lets_any_account_in_as_a_key_or_as_a_password(server: Server) -> None:
    shown = "print(json.dumps(ask(headers={'authorization': given['header']})))"
    assert server.ask_as(OTHER, shown, header=f"Bearer {server.token}")["status"] == LET_IN
    password = base64.b64encode(f"me:{server.token}".encode()).decode()
    assert server.ask_as(OTHER, shown, header=f"Basic {password}")["status"] == LET_IN
    for wrong in (f"Bearer {server.token}x", "Bearer ondot_token_", "Basic %", "Basic bWU6", "Digest x"):
        assert server.ask_as(OTHER, shown, header=wrong)["status"] == REFUSED


@proves("T1")
def test_a_socket_of_our_account_that_speaks_both_protocols_is_known(server: Server) -> None:
    assert server.ask_as(OURS, MAPPED)["status"] == LET_IN
    assert server.ask_as(OTHER, MAPPED)["status"] == REFUSED


@proves("T1")
def test_what_a_client_sent_before_it_closed_is_nobodys(server: Server, of_root: Server) -> None:
    """Such a socket is shown with uid 0: to a server that runs as root it would look like its own."""
    # Stopped while the client comes and goes: the client is gone before the server looks.
    os.kill(of_root.pid, signal.SIGSTOP)
    try:
        of_root.ask_as(OTHER, SEND_AND_CLOSE)
    finally:
        os.kill(of_root.pid, signal.SIGCONT)
    created: list[str] = []
    while not created:
        metrics = of_root.ask_as(0, "print(json.dumps(ask(path='/metrics')))")["text"]
        created = [line for line in metrics.splitlines() if 'route="/jobs"' in line and "_count" in line]
    assert all('status="401"' in line for line in created), created
    assert server.ask_as(OTHER, HALF_CLOSED)["status"] in {REFUSED, 0}


@proves("T1")
def test_a_relay_of_another_account_is_never_trusted(server: Server) -> None:
    with server.client(OTHER, RELAY) as relay:
        assert relay.stdout
        port = int(relay.stdout.readline())
        through = "print(json.dumps(ask(at=('127.0.0.1', given['port']))))"
        for uid in (OURS, OTHER):
            assert server.ask_as(uid, through, port=port)["status"] == REFUSED


@proves("T1", "O5")
async def test_the_sdk_sends_the_token_of_its_home_by_itself(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is root: another account than that of the server, and one that may read its home."""
    monkeypatch.setenv("ONDOT_HOME", str(server.home))
    async with Client(server.url) as client:
        with pytest.raises(Unavailable, match="PostgreSQL"):
            await client.list_pools()
    monkeypatch.delenv("ONDOT_HOME")
    async with Client(server.url) as client:
        with pytest.raises(Unauthorized, match="token"):
            await client.list_pools()


@proves("T1", "O5")
def test_the_page_shows_another_account_how_to_sign_in(server: Server) -> None:
    first_page = "print(json.dumps(ask(path='/')))"
    refused = server.ask_as(OTHER, first_page)
    assert refused["status"] == REFUSED
    assert "<html" in refused["text"]
    assert str(server.home / "token") in refused["text"]
    assert "key create" not in refused["text"]
    assert server.ask_as(OURS, first_page)["status"] == LET_IN


@proves("T1", "O2")
def test_what_watches_from_another_account_needs_no_token(server: Server) -> None:
    for path in ("/livez", "/metrics"):
        assert server.ask_as(OTHER, "print(json.dumps(ask(path=given['path'])))", path=path)["status"] == 200
