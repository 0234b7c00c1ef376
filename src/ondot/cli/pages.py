"""Lists of any length from an API that answers in pages, and one way to show them.

`-o json` and `-o yaml` print the API's answer, `items` and `next_cursor`; `-o jsonl` and `-o name` only the items.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from ondot.cli.calling import ask
from ondot.cli.output import (
    Format,
    ListFormat,
    show,
    show_items,
    show_line,
    show_notice,
    show_pieces,
    show_progress,
)

if TYPE_CHECKING:
    from ondot.cli.listing import Listing
    from ondot.sdk.client import Client

LARGEST_PAGE: Final = 1000
DEFAULT_LIMIT: Final = 50

Json = dict[str, Any]


async def gather(page: Callable[[Json], Awaitable[Json]], limit: int, cursor: str | None = None) -> Json:
    """Read pages until there are enough items. A search that stopped because its time was up is not continued: the
    answer has `searched_through`."""
    items: list[Json] = []
    while True:
        answer = await page({"limit": min(limit - len(items), LARGEST_PAGE), "cursor": cursor})
        items.extend(answer["items"])
        cursor = answer["next_cursor"]
        if through := answer.get("searched_through"):
            return {"items": items, "next_cursor": cursor, "searched_through": through}
        if cursor is None or len(items) >= limit:
            return {"items": items, "next_cursor": cursor}


def show_csv(what: str, filters: Json, limit: int) -> None:
    """The list as the API exports it: cells that a spreadsheet would run are escaped."""

    async def write(client: "Client") -> None:
        await show_pieces(client.export(what, "csv", **filters, limit=limit))

    ask(write)


def show_page(
    page: Json, output: Format | ListFormat, draw: "Callable[[Sequence[Json], datetime], Listing]", *, none: str
) -> None:
    items = page["items"]
    through = page.get("searched_through")
    form = Format(output)
    if not form.is_table:
        show_items(page, items, form)
        if form in {Format.JSONL, Format.NAME}:
            if through:
                show_notice(_go_on(page))
            else:
                _say_if_cut(page)
    elif items:
        show(draw(items, datetime.now(UTC)), form)
        if through:
            show_line(_go_on(page))
        else:
            _say_if_cut(page)
    else:
        show_line(_go_on(page) if through else none)


def _say_if_cut(page: Json) -> None:
    """To scripts only if the limit may be one that nobody chose: `ondot job list -o name | …` must not miss jobs."""
    if page.get("next_cursor"):
        count = len(page["items"])
        say = show_notice if count == DEFAULT_LIMIT else show_progress
        say(f"There are more than these {count}. Show more with --limit.")


def _go_on(page: Json) -> str:
    """A list that may lack older items must not look complete, in no form of output."""
    return f"Searched through {page['searched_through']}; go on with --cursor {page['next_cursor']}"
