"""`ondot user` as a process, on a real database."""

import json

import pytest

from tests.cli.running import Ran, ondot
from tests.proves import proves

PASSWORD = "nine tall mirrors"


def on(database_url: str, *words: str, stdin: str = "") -> Ran:
    return ondot(*words, stdin=stdin, database_url=database_url, allow_unsafe_database="1")


def listed(database_url: str) -> dict[str, dict[str, str]]:
    lines = on(database_url, "user", "list", "-o", "jsonl").out.splitlines()
    return {user["email"]: user for user in map(json.loads, lines)}


@proves("T1", "T7")
async def test_the_first_owner_is_created_with_access_to_the_database(database_url: str) -> None:
    ran = on(database_url, "user", "create", "--owner", "You@Example.com", "--password-stdin", stdin=f"{PASSWORD}\n")
    assert (ran.code, ran.out) == (0, "Created you@example.com, owner.\n"), ran.err
    assert "ondot key create me --role owner" in ran.err
    second = on(database_url, "user", "create", "ada@example.com", "--password-stdin", stdin=f"{PASSWORD}\n")
    assert (second.code, second.err) == (0, "")
    assert listed(database_url)["you@example.com"]["role"] == "owner"
    for words in (("delete",), ("disable",), ("update", "--role", "viewer")):
        refused = on(database_url, "user", *words, "you@example.com", *(() if words[0] == "update" else ("--yes",)))
        assert (refused.code, "last owner" in refused.err) == (4, True), refused.err


@proves("T1")
async def test_a_generated_password_is_printed_alone_and_once(database_url: str) -> None:
    made = on(database_url, "user", "create", "ada@example.com", "--generate")
    assert made.code == 0
    assert len(made.out.strip()) >= 16
    assert made.out.strip() not in on(database_url, "user", "list", "-o", "json").out


async def test_users_are_changed_reset_and_deleted(database_url: str) -> None:
    on(database_url, "user", "create", "ada@example.com", "--generate")
    assert on(database_url, "user", "update", "ada@example.com", "--role", "editor").code == 0
    assert on(database_url, "user", "disable", "ada@example.com", "--yes").code == 0
    assert (listed(database_url)["ada@example.com"]["role"], listed(database_url)["ada@example.com"]["state"]) == (
        "editor",
        "DISABLED",
    )
    assert on(database_url, "user", "reset", "ada@example.com", "--yes").code == 4
    assert on(database_url, "user", "enable", "ada@example.com").code == 0
    link = on(database_url, "user", "reset", "ada@example.com", "--yes")
    assert link.out.startswith("http://127.0.0.1:1200/invitation?token=")
    assert on(database_url, "user", "delete", "ada@example.com", "--yes").code == 0
    assert listed(database_url) == {}


@pytest.mark.parametrize(
    ("words", "stdin", "code", "says"),
    [
        (("create", "nobody"), "", 2, "not an e-mail address"),
        (("create", "ada@example.com"), "", 2, "--password-stdin"),
        (("create", "ada@example.com", "--password-stdin"), "short\n", 2, "12 characters"),
        (("create", "ada@example.com", "--password-stdin"), "ada@example.com1\n", 2, "others try first"),
        (("create", "ada@example.com", "--role", "king", "--generate"), "", 2, "Unknown role 'king'"),
        (("create", "ada@example.com", "--generate", "--tenant", "acme"), "", 3, "no tenant 'acme'"),
        (("disable", "ada@example.com", "--yes"), "", 3, "no user 'ada@example.com'"),
    ],
)
async def test_bad_input_says_what_to_do(
    database_url: str, words: tuple[str, ...], stdin: str, code: int, says: str
) -> None:
    ran = on(database_url, "user", *words, stdin=stdin)
    assert ran.code == code, ran.err
    assert says in " ".join(ran.err.replace("│", " ").split())
