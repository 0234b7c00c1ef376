"""References to secrets, and where a secret may go."""

from typing import Any

import msgspec
import pytest

from ondot.model.errors import InvalidBody
from ondot.model.headers import is_sensitive
from ondot.model.job import JobSpec, decode_spec, encode_spec, is_same_spec, keep_hidden
from ondot.model.secret import (
    Destinations,
    Hidden,
    fill_in,
    fill_in_written,
    find_references,
    is_host,
    is_secret_name,
    read_reference,
)
from ondot.model.target import HttpTarget
from ondot.model.urls import host_of
from tests.proves import proves


@proves("T5")
@pytest.mark.parametrize(
    "name",
    [
        "Authorization",
        "authorization",
        "X_Authorization",
        "Cookie",
        "X-Api-Key",
        "Api-Key",
        "apikey",
        "X-Auth-Token",
        "PRIVATE-TOKEN",
        "X-Hub-Secret",
        "X-Amz-Security-Token",
        "Ocp-Apim-Subscription-Key",
    ],
)
def test_headers_with_credentials_are_known(name: str) -> None:
    assert is_sensitive(name)


@proves("T5")
@pytest.mark.parametrize("name", ["Idempotency-Key", "X-Team", "Content-Type", "Accept", "X-Author", "Monkey"])
def test_other_headers_are_not(name: str) -> None:
    assert not is_sensitive(name)


@proves("T5")
@pytest.mark.parametrize(
    ("destinations", "host", "function", "programs"),
    [
        (Destinations(), True, True, True),
        (Destinations(hosts=("api.stripe.com",)), True, False, False),
        (Destinations(hosts=("*.stripe.com",)), True, False, False),
        (Destinations(hosts=("stripe.com",)), False, False, False),
        (Destinations(hosts=("*.api.stripe.com",)), False, False, False),
        (Destinations(functions=("charge",)), False, True, False),
        (Destinations(hosts=("other.org",), functions=("charge",)), False, True, False),
    ],
)
def test_listed_targets_are_the_only_ones(
    destinations: Destinations, host: bool, function: bool, programs: bool
) -> None:
    found = (
        destinations.allows_host("api.stripe.com"),
        destinations.allows_function("charge"),
        destinations.allows_programs,
    )
    assert found == (host, function, programs)


@proves("T5")
@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://API.Stripe.com/v1", "api.stripe.com"),
        ("https://api.stripe.com./v1", "api.stripe.com"),
        ("https://api.stripe.com:8443/", "api.stripe.com"),
        ("https://evil.org/api.stripe.com", "evil.org"),
        ("https://evil.org?@api.stripe.com/", "evil.org"),
        ("https://evil.org#@api.stripe.com/", "evil.org"),
        ("http://[::1]:80/", "::1"),
        ("http://127.0.0.1/", "127.0.0.1"),
        ("nonsense", ""),
    ],
)
def test_the_host_is_the_one_that_the_client_connects_to(url: str, host: str) -> None:
    assert host_of(url) == host


@proves("T5")
def test_references_are_found_and_filled_anywhere_in_a_payload() -> None:
    payload = {"a": [{"key": {"$secret": "stripe"}}], "b": {"$secret": "mail", "prefix": "Basic "}, "c": 3}
    assert sorted(place for place, _ in find_references(payload)) == ["/a/0/key", "/b"]
    values = {"stripe": "sk_live_1", "mail": "pw_mail_1"}
    assert fill_in(payload, values.__getitem__) == {"a": [{"key": "sk_live_1"}], "b": "Basic pw_mail_1", "c": 3}


@proves("T5")
@pytest.mark.parametrize(
    "written", [{"$secret": 3}, {"$secret": "A b"}, {"$secret": "x", "more": 1}, {"$secret": "x", "prefix": 3}]
)
def test_a_wrong_reference_is_a_sentence(written: dict[str, Any]) -> None:
    assert isinstance(read_reference(written), str)


@proves("T5")
def test_names_and_hosts() -> None:
    assert [is_secret_name(name) for name in ("stripe", "a.b-c_1", "", "A", "-a", "a b", "a" * 64)] == [
        True,
        True,
        *[False] * 5,
    ]
    assert [is_host(host) for host in ("api.stripe.com", "*.x.org", "10.0.0.1", "https://a", "a/b", "*")] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]


def http(url: str = "https://a.org/x", **headers: str | Hidden) -> JobSpec:
    return JobSpec(name="j", target=HttpTarget(url=url, headers=headers), secrets=())


@proves("T5")
def test_a_spec_with_hidden_headers_survives_its_storage() -> None:
    spec = http(authorization=Hidden(sealed="1:abc", mark="m"), other=Hidden(secret="x", prefix="Bearer "), plain="p")
    assert decode_spec(encode_spec(spec)) == spec
    assert msgspec.json.decode(encode_spec(spec))["target"]["headers"]["other"] == {"$secret": "x", "prefix": "Bearer "}


@proves("T5")
def test_unchanged_and_equal_headers_keep_what_is_stored() -> None:
    stored = http(Authorization=Hidden(sealed="1:abc", mark="m"))
    assert is_same_spec(http(Authorization=Hidden()), stored)
    assert is_same_spec(http(Authorization=Hidden(sealed="1:other", mark="m")), stored)
    assert not is_same_spec(http(Authorization=Hidden(sealed="1:other", mark="n")), stored)
    assert keep_hidden(http(authorization=Hidden()), http(Authorization="plain of before")).target == HttpTarget(
        url="https://a.org/x", headers={"authorization": "plain of before"}
    )


@proves("T5")
@pytest.mark.parametrize("url", ["https://b.org/x", "http://a.org/x", "https://a.org:8443/x"])
def test_an_unchanged_header_does_not_follow_to_another_origin(url: str) -> None:
    stored = http(authorization=Hidden(sealed="1:abc", mark="m"))
    with pytest.raises(InvalidBody, match="give its value again"):
        keep_hidden(http(url, authorization=Hidden()), stored)
    with pytest.raises(InvalidBody, match="no value is stored"):
        keep_hidden(http(cookie=Hidden()), stored)


@proves("T5")
def test_of_a_payload_made_of_a_template_only_references_of_the_template_are_filled_in() -> None:
    reference = {"$secret": "stripe"}
    template = {"key": reference, "list": [reference, {"$from": "a.result"}], "data": {"$from": "a.result"}}
    brought = {"key": reference, "list": [reference, reference], "data": {"key": reference, "$secret": "stripe"}}
    filled = fill_in_written(template, brought, str.upper)
    assert filled == {"key": "STRIPE", "list": ["STRIPE", reference], "data": {"key": reference, "$secret": "stripe"}}
    assert fill_in_written(template, {"key": {"$secret": "other"}}, str.upper) == {"key": {"$secret": "other"}}
    assert fill_in_written(template, {"key": "mine", "list": [1]}, str.upper) == {"key": "mine", "list": [1]}
    assert fill_in_written({}, reference, str.upper) == reference
