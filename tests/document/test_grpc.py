"""The target `grpc` in a body: what is accepted, how it is shown, and what is said about the rest."""

from datetime import UTC, datetime
from typing import Any

import pytest

from ondot.document.parse import job_spec
from ondot.document.render_target import render_target
from ondot.model.errors import InvalidBody
from ondot.model.job import decode_spec, encode_spec
from ondot.model.target import GrpcTarget
from tests.proves import proves

NOW = datetime(2031, 3, 3, tzinfo=UTC)
PEM = "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----"
DEFAULTS: dict[str, Any] = {"connection": None, "metadata": {}, "tls": True, "descriptor_set": None}


def read(**target: Any) -> GrpcTarget:
    body = {"target": {"grpc": {"address": "api.example.com:443", "method": "shop.v1.Orders/Place", **target}}}
    spec = job_spec(body, NOW)
    found = decode_spec(encode_spec(spec)).target
    assert isinstance(found, GrpcTarget)
    return found


@proves("E3")
@pytest.mark.parametrize(
    "target",
    [
        {},
        {"tls": False},
        {"address": "[2001:db8::1]:1"},
        {"metadata": {"x-Team".lower(): "bi", "x_key.1-bin": "/w", "authorization": {"$secret": "s", "prefix": "B "}}},
        {"tls": {"server_name": "a.internal"}},
        {"tls": {"ca": PEM, "certificate": {"$secret": "c"}, "key": {"$secret": "k"}}},
        {"descriptor_set": "Cg=="},
    ],
)
def test_a_target_is_shown_as_it_was_written(target: dict[str, Any]) -> None:
    whole = {"address": "api.example.com:443", "method": "shop.v1.Orders/Place", **DEFAULTS, **target}
    assert render_target(read(**target)) == {"grpc": whole}
    assert read(**whole) == read(**target)


@pytest.mark.parametrize("written", ["/shop.v1.Orders/Place", "shop.v1.Orders.Place"])
def test_a_method_is_accepted_as_people_write_it(written: str) -> None:
    assert read(method=written).method == "shop.v1.Orders/Place"


@proves("E3")
@pytest.mark.parametrize(
    ("target", "words"),
    [
        ({"address": "api.example.com"}, "`target.grpc.address` must be a host and its port without a scheme"),
        ({"address": "dns:///api.example.com:443"}, "without a scheme"),
        ({"address": "unix:/tmp/socket:1"}, "without a scheme"),
        ({"address": "https://api.example.com:443"}, "without a scheme"),
        ({"address": "user@api.example.com:443"}, "without a scheme"),
        ({"address": "api.example.com:0"}, "without a scheme"),
        ({"address": "api.example.com:65536"}, "without a scheme"),
        ({"address": "a,b:1"}, "without a scheme"),
        ({"address": "ä.example.com:1"}, "without a scheme"),
        ({"method": "Place"}, "`target.grpc.method` must be a service with its package, and a method"),
        ({"method": "a/b/c"}, "must be a service"),
        ({"method": "a.B/C\r\nx: y"}, "must be a service"),
        ({"metadata": {"X-Team": "bi"}}, "in lower case"),
        ({"metadata": {"x team": "bi"}}, "is not a name of gRPC metadata"),
        ({"metadata": {"grpc-timeout": "1n"}}, "gRPC sets the metadata grpc-timeout itself"),
        ({"metadata": {"ondot-attempt": "1"}}, "ondot sets the header ondot-attempt itself"),
        ({"metadata": {"ondot-tls-ca": PEM}}, "ondot sets the header ondot-tls-ca itself"),
        ({"metadata": {"te": "x"}}, "belongs to the connection"),
        ({"metadata": {"x-a": "ü"}}, "`metadata.x-a` must be text of printable ASCII"),
        ({"metadata": {"x-a-bin": "%"}}, "`metadata.x-a-bin` must be base64"),
        ({"tls": "yes"}, "`target.grpc.tls` must be true, false, or an object"),
        ({"tls": {"key": "very-secret"}}, "Give PEM"),
        ({"tls": {"certificate": PEM}}, "belong together"),
        ({"tls": {"server_name": "a b"}}, "`target.grpc.tls.server_name` must be a host's name"),
        ({"tls": {"keey": 1}}, "did you mean `key`?"),
        ({"url": "x"}, "There is no field"),
    ],
)
def test_a_fault_is_named_with_what_to_do_and_without_secrets(target: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidBody) as refused:
        read(**target)
    assert words in refused.value.message
    assert "very-secret" not in refused.value.message
