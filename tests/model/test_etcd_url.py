"""Where etcd is: several endpoints, one user, one prefix."""

import pytest

from ondot.model.etcd_url import EtcdAddress, parse_etcd_url
from tests.proves import proves


@proves("C6")
@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:2379", EtcdAddress(("http://127.0.0.1:2379",), "/ondot")),
        ("https://etcd", EtcdAddress(("https://etcd:2379",), "/ondot")),
        ("http://[::1]:1", EtcdAddress(("http://[::1]:1",), "/ondot")),
        ("http://a:1, b:2,http://a:1,", EtcdAddress(("http://a:1", "http://b:2"), "/ondot")),
        (
            "https://me:p%40ss@a,b/of/staging/",
            EtcdAddress(("https://a:2379", "https://b:2379"), "/of/staging", "me", "p@ss"),
        ),
    ],
)
def test_an_address_is_read(url: str, address: EtcdAddress) -> None:
    assert parse_etcd_url(url) == address
    assert "p@ss" not in repr(address)


@proves("C6")
@pytest.mark.parametrize(
    "url",
    [
        *("", ",", "a:2379", "ftp://a", "http://", "http://a:0", "http://a:99999", "http://a:x", "http://[a"),
        *("http://a,https://b", "http://me:secret@a,http://you:secret@b", "http://a/x,b/y", "http://a?timeout=secret"),
    ],
)
def test_what_is_no_address_is_rejected_without_showing_it(url: str) -> None:
    with pytest.raises(ValueError, match=r"\w") as error:
        parse_etcd_url(url)
    assert "secret" not in str(error.value)
