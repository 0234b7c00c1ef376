"""The budget of a search for fires (S12): rules that exclude each other's every fire must not delay other jobs.

A **look** is one question to a rule: its next instant after another, about 4 µs. Longer operations count for more:
years that are passed over, days off, periods of a recurrence. Looks are counted and not timed, so that a schedule that
is rejected on one machine is rejected on all.

`allowed` opens a budget, and every search inside it spends from it, however deep it is called: a preview of a thousand
fires, a check, the page of a year. Within one budget the answers of rules are cached, which makes 99 rules that rarely
exclude something as cheap as one. One search never spends more than `A_SEARCH`; then it gives up (`GivenUp` in `rule`).
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

A_TURN: Final = 1_000
"""The most that one job may cost in a pass that plans other jobs too, about 4 ms. A costlier one comes after them."""
A_SEARCH: Final = 50_000
"""For one next fire: 0.2 s, and up to 0.7 s for recurrences."""
A_REQUEST: Final = 100_000
"""For everything that one request computes of a schedule: 0.4 s, and up to 1.4 s for recurrences."""
HOLIDAYS: Final = 500
"""For the holidays of a region in one year, which a package computes once, in some milliseconds."""

_A_YEAR: Final = 8
_SEARCHED_YEARS: Final = 50
_PERIODS_A_LOOK: Final = 4
_ENDLESS: Final = 10**9

P = ParamSpec("P")
R = TypeVar("R")
K = TypeVar("K")


class Spent(Exception):
    """A search has used up its budget. The caller that knows the schedule turns this into an error (`given_up`)."""


class TooCostly(Exception):
    """The same for a strict budget: the planner computes the schedule again, after the other jobs."""


class Looks:
    """One budget, and the answers found within it. For one thread at a time."""

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
        """A search does not give up before its first step is done: from there it can continue another time."""
        self._left_of_search = min(self.left, A_SEARCH)
        self._may_give_up = self._is_strict

    def first_step_done(self) -> None:
        self._may_give_up = True

    def take(self, looks: int) -> None:
        """Subtract what a budget inside this one has spent."""
        self.left -= looks

    def spend(self, looks: int) -> None:
        self.left -= looks
        self._left_of_search -= looks
        if self._left_of_search < 0 and self._may_give_up:
            raise TooCostly if self._is_strict else Spent

    def spend_periods(self, periods: int) -> None:
        """Spend for the periods of a recurrence that were looked into."""
        before = self.periods // _PERIODS_A_LOOK
        self.periods += periods
        if (looks := self.periods // _PERIODS_A_LOOK - before) > 0:
            self.spend(looks)

    def look(
        self, rule: Hashable, after: datetime, ask: Callable[[], datetime | None], looks: int = 1
    ) -> datetime | None:
        """A rule's first instant after another: cached, or by asking the rule."""
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
        """A value that one search keeps for the next."""
        kept: K | None = self._kept.get(what)
        if kept is None:
            kept = self._kept[what] = make(what)
        return kept


def _holds(seen: tuple[datetime, datetime | None], after: datetime) -> bool:
    """Whether an answer for one instant holds for a later one. "No instant" is an answer for 50 years."""
    asked_at, found = seen
    return after < found if found is not None else after.year == asked_at.year


_OPEN: Final[ContextVar[Looks | None]] = ContextVar("looks", default=None)


@contextmanager
def allowed(most: int, *, is_strict: bool = False) -> Iterator[Looks]:
    """Open a budget for all searches inside. What they spend is also taken from the budget around it."""
    looks, outer = Looks(most, is_strict=is_strict), _OPEN.get()
    token = _OPEN.set(looks)
    try:
        yield looks
    finally:
        _OPEN.reset(token)
        if outer is not None:
            outer.take(most - looks.left)


@contextmanager
def open_or_endless() -> Iterator[Looks]:
    """The open budget, or one without limit: for results that are cached with their cost."""
    looks = _OPEN.get()
    if looks is not None:
        yield looks
        return
    with allowed(_ENDLESS) as looks:
        yield looks


def open_looks() -> Looks | None:
    """The open budget, if there is one."""
    return _OPEN.get()


def bounded(function: Callable[P, R]) -> Callable[P, R]:
    """Run with a budget of its own unless one is open: for functions that ask a schedule many times."""

    @wraps(function)
    def within(*arguments: P.args, **options: P.kwargs) -> R:
        if _OPEN.get() is not None:
            return function(*arguments, **options)
        with allowed(A_REQUEST):
            return function(*arguments, **options)

    return within
