"""How much a search for fires may look at (S12): rules that take away each other's every fire must not hold up others.

A **look** is one question to a rule: the next instant after another, about 4 µs. What takes longer counts for more:
years that are leapt over, days off, periods of a recurrence. Looks are counted and not timed, so that a schedule that
is refused on one machine is refused on all.

`allowed` opens a budget, and every search inside it takes from it, however deep it is called: a preview of a thousand
fires, a check, a year of a page. Inside one budget a rule that was asked is not asked again for the same stretch of
time, which makes 99 rules that exclude something now and then as cheap as one. One search never takes more than
`A_SEARCH`, and gives up where it stands (`GivenUp` in `rule`).
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

A_TURN: Final = 1_000
"""What a job may cost a pass that plans others as well, about 4 ms; one that takes more is planned after them."""
A_SEARCH: Final = 50_000
"""For one next fire: 0.2 s, and up to 0.7 s of recurrences."""
A_REQUEST: Final = 100_000
"""For all that one request asks of a schedule: 0.4 s, and up to 1.4 s of recurrences."""
HOLIDAYS: Final = 500
"""For the holidays of a region in one year, which a package works out once, in some milliseconds."""

_A_YEAR: Final = 8
_SEARCHED_YEARS: Final = 50
_PERIODS_A_LOOK: Final = 4
_ENDLESS: Final = 10**9

P = ParamSpec("P")
R = TypeVar("R")
K = TypeVar("K")


class Spent(Exception):
    """A search has used up what it may look at; who knows the schedule makes a refusal of it (`given_up`)."""


class TooCostly(Exception):
    """The same of a strict budget: the planner computes the schedule again, apart from others."""


class Looks:
    """One budget, and what was seen within it. For one thread at a time."""

    def __init__(self, most: int, *, is_strict: bool = False) -> None:
        self.left = most
        self._left_of_search = most
        self._is_strict = is_strict
        self._may_give_up = True
        self.periods = 0
        self._seen: dict[Hashable, tuple[datetime, datetime | None]] = {}
        self._kept: dict[Hashable, Any] = {}

    @property
    def is_spent(self) -> bool:
        return self.left < 0

    def begin_search(self) -> None:
        """Until its first step is done it does not give up: where it stands then it can go on another time."""
        self._left_of_search = min(self.left, A_SEARCH)
        self._may_give_up = self._is_strict

    def first_step_done(self) -> None:
        self._may_give_up = True

    def take(self, looks: int) -> None:
        """What another budget inside this one has spent."""
        self.left -= looks

    def spend(self, looks: int) -> None:
        self.left -= looks
        self._left_of_search -= looks
        if self._left_of_search < 0 and self._may_give_up:
            raise TooCostly if self._is_strict else Spent

    def spend_periods(self, periods: int) -> None:
        """A recurrence looks into so many of its periods."""
        before = self.periods // _PERIODS_A_LOOK
        self.periods += periods
        if (looks := self.periods // _PERIODS_A_LOOK - before) > 0:
            self.spend(looks)

    def look(
        self, rule: Hashable, after: datetime, ask: Callable[[], datetime | None], looks: int = 1
    ) -> datetime | None:
        """The first instant of a rule after another: as it was seen before, or by asking."""
        seen = self._seen.get(rule)
        if seen is not None and seen[0] <= after and _holds(seen, after):
            return seen[1]
        self.spend(looks)
        found = ask()
        years = _SEARCHED_YEARS if found is None else found.year - after.year
        if years:
            self.spend(years * _A_YEAR)
        self._seen[rule] = after, found
        return found

    def kept(self, what: Hashable, make: Callable[[Any], K]) -> K:
        """What a search keeps in mind for the next one."""
        kept: K | None = self._kept.get(what)
        if kept is None:
            kept = self._kept[what] = make(what)
        return kept


def _holds(seen: tuple[datetime, datetime | None], after: datetime) -> bool:
    """Whether what was seen after an instant is so after a later one; that there is nothing is so for 50 years."""
    asked_at, found = seen
    return after < found if found is not None else after.year == asked_at.year


_OPEN: Final[ContextVar[Looks | None]] = ContextVar("looks", default=None)


@contextmanager
def allowed(most: int, *, is_strict: bool = False) -> Iterator[Looks]:
    """A budget for all that is searched inside. What it takes is taken from the one around it, too."""
    looks, outer = Looks(most, is_strict=is_strict), _OPEN.get()
    token = _OPEN.set(looks)
    try:
        yield looks
    finally:
        _OPEN.reset(token)
        if outer is not None:
            outer.take(most - looks.left)


@contextmanager
def counted() -> Iterator[Looks]:
    """The budget that is open, or one without an end: for what is remembered with its cost."""
    looks = _OPEN.get()
    if looks is not None:
        yield looks
        return
    with allowed(_ENDLESS) as looks:
        yield looks


def open_looks() -> Looks | None:
    """The budget that is open, if one is."""
    return _OPEN.get()


def bounded(function: Callable[P, R]) -> Callable[P, R]:
    """With a budget of its own, unless one is open: for all that asks a schedule many times."""

    @wraps(function)
    def within(*arguments: P.args, **options: P.kwargs) -> R:
        if _OPEN.get() is not None:
            return function(*arguments, **options)
        with allowed(A_REQUEST):
            return function(*arguments, **options)

    return within
