"""A list as a table with one line for each row, which fits the terminal (D5).

Columns are dropped in a declared order while the terminal is too narrow for the rest, then long cells are cut and end
in `…`. Nothing wraps. With `-o wide` all columns are shown in full. In a file or a pipe no cell is cut: columns are
separated by at least two spaces, no cell is empty or contains two spaces, so `awk -F '  +'` finds them.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ondot.model.text import visible

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

GAP: Final = 2
LEAST: Final = 10
"""A column is dropped before the others get narrower than this."""
LEAST_NAME: Final = 24
"""The same for the first column that may be cut, the name: `send_invo…` may be several jobs."""
_BLANKS: Final = re.compile(r"\s+")


class Listing:
    """`drop`: columns in the order in which they go when the terminal is too narrow; the others always stay.
    `whole`: columns that are dropped rather than cut. `wide`: columns that only `-o wide` shows."""

    def __init__(
        self, *columns: str, drop: Sequence[str] = (), whole: Sequence[str] = (), wide: Sequence[str] = ()
    ) -> None:
        unknown = {*drop, *whole, *wide} - set(columns)
        assert not unknown, f"no such column: {unknown}"
        self.columns, self.drop, self.whole, self.wide = columns, drop, whole, wide
        self.name = next((column for column in columns if column not in whole), None)
        self.rows: list[tuple[str | Text, ...]] = []

    def add_row(self, *cells: "str | Text | None") -> None:
        """One cell for each column, also for those that only `-o wide` shows."""
        assert len(cells) == len(self.columns), f"{len(cells)} cells for {len(self.columns)} columns"
        self.rows.append(tuple(cell or "-" for cell in cells))

    @property
    def row_count(self) -> int:
        return len(self.rows)

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.text import Text

        is_wide = getattr(console, "is_wide", False)
        shown = [place for place, name in enumerate(self.columns) if is_wide or name not in self.wide]
        lines = [[Text(self.columns[place], style="bold") for place in shown]]
        lines += [[_on_one_line(row[place]) for place in shown] for row in self.rows]
        names = [self.columns[place] for place in shown]
        widths = {name: max(line[place].cell_len for line in lines) for place, name in enumerate(names)}
        if options.is_terminal and not is_wide:
            widths = self._fit(widths, options.max_width)
        for line in lines:
            yield _join([(cell, widths[name]) for cell, name in zip(line, names, strict=True) if name in widths])

    def _fit(self, natural: dict[str, int], width: int) -> dict[str, int]:
        widths = dict(natural)
        for name in self.drop:
            needed = sum(size if key in self.whole else min(size, self._least(key)) for key, size in widths.items())
            if needed + GAP * (len(widths) - 1) <= width:
                break
            widths.pop(name, None)
        while (over := sum(widths.values()) + GAP * (len(widths) - 1) - width) > 0:
            # The widest gives way, down to the next one: first what is more than needed, then the name, then the rest.
            least = self._least if any(map(self._may_shrink, widths.items())) else lambda _: LEAST
            flexible = {key: size for key, size in widths.items() if key not in self.whole and size > least(key)}
            flexible = flexible or widths
            widest = max(flexible, key=lambda key: flexible[key])
            below = sorted(flexible.values())[-2] if len(flexible) > 1 else 0
            widths[widest] -= max(1, min(over, flexible[widest] - max(below, least(widest))))
            if widths[widest] <= 0:
                del widths[widest]
        return widths

    def _least(self, column: str) -> int:
        return LEAST_NAME if column == self.name else LEAST

    def _may_shrink(self, column: tuple[str, int]) -> bool:
        name, size = column
        return name not in self.whole and size > self._least(name)


def _on_one_line(cell: "str | Text") -> "Text":
    """Blanks, also line breaks, become one space, so that a name cannot look like two cells or two rows."""
    from rich.text import Text

    if isinstance(cell, str):
        return Text(_BLANKS.sub(" ", visible(cell)).strip() or "-")
    plain = _BLANKS.sub(" ", visible(cell.plain)).strip() or "-"
    return cell if plain == cell.plain else Text(plain, style=cell.style or (cell.spans[0].style if cell.spans else ""))


def _join(cells: "Sequence[tuple[Text, int]]") -> "Text":
    from rich.text import Text

    line = Text(no_wrap=True, overflow="ignore", end="\n")
    for place, (cell, width) in enumerate(cells):
        is_last = place == len(cells) - 1
        cut = cell.copy()
        cut.truncate(width, overflow="ellipsis", pad=not is_last)
        line.append_text(cut)
        if not is_last:
            line.append(" " * GAP)
    return line
