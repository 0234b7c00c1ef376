"""What a server says of itself, and whether it can still have all that was acknowledged."""

import pytest

from ondot.model.lineage import Server, why_broken, why_set_back
from tests.proves import proves

KNOWN = Server("7000", 3, 16400, is_synchronous=False)
REPLICATED = Server("7000", 3, 16400, is_synchronous=True)


@proves("P1")
@pytest.mark.parametrize(
    ("known", "found", "word"),
    [
        (KNOWN, KNOWN, None),
        (KNOWN, REPLICATED, None),
        (REPLICATED, KNOWN, None),
        (KNOWN, Server("7000", 4, 16400, is_synchronous=False), "timeline 3 to 4"),
        (KNOWN, Server("7000", 2, 16400, is_synchronous=True), "timeline 3 to 2"),
        (REPLICATED, Server("7000", 4, 16400, is_synchronous=False), None),
        (KNOWN, Server("8000", 3, 16400, is_synchronous=False), "another PostgreSQL cluster"),
        (REPLICATED, Server("8000", 3, 16400, is_synchronous=True), "another PostgreSQL cluster"),
        (REPLICATED, Server("7000", 3, 17000, is_synchronous=True), "tables were created again"),
    ],
)
def test_only_a_synchronous_standby_is_known_to_have_all(known: Server, found: Server, word: str | None) -> None:
    why = why_broken(known, found)
    assert word in why if word is not None and why is not None else why is word


@proves("P1")
@pytest.mark.parametrize(("flushed", "written", "is_less"), [(100, 100, False), (100, 140, False), (2100, 100, True)])
def test_a_log_that_ends_before_what_was_flushed_is_of_an_older_copy(flushed: int, written: int, is_less: bool) -> None:
    assert ("2,000 bytes" in (why_set_back(flushed, written) or "")) is is_less
