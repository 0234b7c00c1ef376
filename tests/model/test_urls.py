"""URLs that hold secrets, written in every way that people write them."""

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondot.model.urls import HIDDEN, fault_of, place_of, without_secrets, without_userinfo
from tests.proves import proves

MARK = "s3cr3t"
SECRETS = st.text(st.sampled_from("ab1:/?#@%&=+[]\\ \t\n'\"$\u2100ü"), max_size=8).map(
    lambda text: f"{MARK}{text}{MARK}"
)
"""A secret with anything inside, so that whichever part of it is shown, the mark is in it."""

PLACES = (
    "postgresql://u:{}@h:5432/db",
    "postgres://u:{}@h,i:5433/db?sslmode=disable",
    "postgresql://u@h/db?password={}",
    "postgresql://u@h/db?sslmode=require&sslpassword={}&port=5432",
    "postgresql://u@/db?host=/run/pg&passfile={}",
    "postgresql://h/db?options={}",
    "postgresql:///db?host=h&pasword={}",
    "postgresql://u:12{}@h/db",
    "host=h password={} dbname=db",
    "{}",
)


def written(place: str, secret: str, encoded: bool) -> str:
    return place.format(quote(secret, safe="") if encoded else secret)


@proves("P12", "T5")
@given(st.sampled_from(PLACES), SECRETS, st.booleans())
def test_no_part_of_a_secret_is_shown_wherever_it_stands(place: str, secret: str, encoded: bool) -> None:
    url = written(place, secret, encoded)
    assert MARK not in place_of(url)
    assert MARK not in (fault_of(url) or "")


@proves("P12", "T5")
@given(st.sampled_from(PLACES[:7]), SECRETS)
def test_a_secret_that_is_encoded_is_accepted_and_taken_out_of_what_others_say(place: str, secret: str) -> None:
    url = written(place, secret, encoded=True)
    assert fault_of(url) is None
    for said in (f"cannot parse {url!s}", f"bad value: {secret}", f"got '{quote(secret, safe='')}'"):
        cleaned = without_secrets(said, url)
        assert MARK not in cleaned
        assert HIDDEN in cleaned


@proves("P12")
@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:s3cr3t#x@h/db",
        "postgresql://u:s3cr3t/x@h/db",
        "postgresql://u:12/x@h/db",
        "postgresql://u:12?x@h/db",
        "postgresql://u:12?a=x@h/db",
        "postgresql://u:12#x@h/db",
        "postgresql://u:a@b@h/db",
        "postgresql://u:a b@h/db",
        "postgresql://u:[a@h/db",
        "postgresql://u:a\u2100@h/db",
        "postgresql://u:a@h:port/db",
        "postgresql://u:a@h/db?password",
        "postgresql://u:a@h/db?port=x",
        "mysql://u:a@h/db",
        "host=h password=a",
        "",
    ],
)
def test_a_url_that_two_readers_would_split_differently_is_refused(url: str) -> None:
    assert fault_of(url) is not None


@proves("O6")
@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://u:p@h:5432/db", "postgresql://u@h:5432/db"),
        ("postgres://h/db", "postgres://h/db"),
        ("postgresql:///db", "postgresql:///db"),
        ("postgresql://u:p@[::1]:5432,h2/db?sslmode=require", "postgresql://u@[::1]:5432,h2/db"),
        (
            "postgresql://ondot@/ondot?host=/run/on.dot&port=5432",
            "postgresql://ondot@/ondot?host=/run/on.dot&port=5432",
        ),
        ("postgresql://u:p@%2Frun%2Fpg/db", "postgresql://u@%2Frun%2Fpg/db"),
    ],
)
def test_a_database_is_shown_by_user_host_and_name(url: str, place: str) -> None:
    assert fault_of(url) is None
    assert place_of(url) == place


@proves("P12")
def test_a_servers_url_is_shown_without_user_and_options() -> None:
    assert without_userinfo("https://u:s3cr3t@h:1200/on?token=s3cr3t#s3cr3t") == "https://h:1200/on"
    assert without_userinfo("http://[s3cr3t") == HIDDEN
