"""To which account a socket belongs: by the kernel, and by its tables where the kernel is not asked."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from ipaddress import ip_address

import pytest

from ondot.account import sockets
from ondot.account.sockets import Address, Socket, ask_kernel, find_listener, our_uid, read_tables
from tests.proves import proves

Find = Callable[[Address, Address], Socket | None]


@contextmanager
def connected(family: socket.AddressFamily, host: str, to: str) -> Iterator[tuple[socket.socket, Address, Address]]:
    """A client's socket, its address as the server sees it, and the server's own."""
    with closing(socket.socket(family)) as client, socket.create_server((host, 0), family=_family(host)) as listener:
        ours = listener.getsockname()[:2]
        client.connect((to, ours[1]))
        accepted, peer = listener.accept()
        with accepted:
            yield client, peer[:2], ours


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


@proves("T1")
@pytest.mark.parametrize("find", [ask_kernel, read_tables])
@pytest.mark.parametrize(
    ("family", "host", "to"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.1"),
        (socket.AF_INET6, "127.0.0.1", "::ffff:127.0.0.1"),
        (socket.AF_INET6, "::1", "::1"),
    ],
)
def test_a_socket_belongs_to_its_account_as_long_as_it_is_open(
    find: Find, family: socket.AddressFamily, host: str, to: str
) -> None:
    with connected(family, host, to) as (client, peer, ours):
        found = find(peer, ours)
        assert found is not None
        assert found.belongs_to(os.geteuid())
        assert not found.belongs_to(os.geteuid() + 1)
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        client.close()
        left = find(peer, ours)
        assert left is None or not left.belongs_to(0)


@proves("T1")
@pytest.mark.parametrize("find", [ask_kernel, read_tables])
def test_what_is_not_there_is_not_found(find: Find) -> None:
    assert find(("127.0.0.1", 1), ("127.0.0.1", 2)) is None
    with connected(socket.AF_INET, "127.0.0.1", "127.0.0.1") as (_, peer, ours):
        assert find(peer, (ours[0], ours[1] - 1)) is None


@proves("T1")
def test_a_listener_where_a_client_was_is_not_the_client() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        at = listener.getsockname()
        found = ask_kernel(at, ("127.0.0.1", 9))
        assert found is None or not found.belongs_to(os.geteuid())
        assert read_tables(at, ("127.0.0.1", 9)) is None


@proves("T1")
@pytest.mark.parametrize("by_tables", [False, True])
@pytest.mark.parametrize(("host", "asked"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "::1")])
def test_a_listener_is_found_by_where_it_listens(
    host: str, asked: str, by_tables: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_tables:
        monkeypatch.setattr(sockets, "ask_kernel", _not_here)
    with socket.create_server((host, 0), family=_family(host)) as listener:
        port = listener.getsockname()[1]
        found = find_listener((asked, port))
    assert found is not None
    assert found.uid == os.geteuid()
    assert find_listener((asked, port)) is None


@proves("T1")
def test_words_of_the_tables_are_read_in_this_machines_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ondot.account.sockets.sys.byteorder", "little")
    assert sockets._end("0100007F:04B0") == (ip_address("127.0.0.1"), 1200)
    assert sockets._end("00000000000000000000000001000000:04B0") == (ip_address("::1"), 1200)
    assert sockets._end("0000000000000000FFFF00000100007F:04B0") == (ip_address("127.0.0.1"), 1200)
    monkeypatch.setattr("ondot.account.sockets.sys.byteorder", "big")
    assert sockets._end("7F000001:04B0") == (ip_address("127.0.0.1"), 1200)
    assert sockets._end("00000000000000000000FFFF7F000001:04B0") == (ip_address("127.0.0.1"), 1200)


@proves("T1")
def test_our_account_is_the_effective_one() -> None:
    assert our_uid() == os.geteuid()


def _not_here(_local: Address, _remote: Address) -> Socket | None:
    raise OSError("no sock_diag")
