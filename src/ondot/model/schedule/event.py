"""A job that events start (S11): which events, as data. It has no timer instant, and its fires are not planned.

`filter` is the text of a pattern (`model.patterns`), checked when the job is created.
"""

from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from ondot.model.event_rules import Batch, CancelOn, Debounce
from ondot.model.patterns import Pattern, compile_pattern


class OnEvent(
    Struct,
    tag_field="kind",
    tag="event",
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    cache_hash=True,
):
    type: str
    source: str | None = None
    source_prefix: str | None = None
    filter: str | None = None
    debounce: Debounce | None = None
    batch: Batch | None = None
    cancel_on: tuple[CancelOn, ...] = ()

    @property
    def collects(self) -> bool:
        """Whether events wait in a window, instead of each starting an execution."""
        return self.debounce is not None or self.batch is not None

    @property
    def pattern(self) -> Pattern | None:
        """What an event of this type must match; None: every one does."""
        return _pattern(self.source, self.source_prefix, self.filter)


def next_after(_: OnEvent, __: datetime) -> datetime | None:
    """Events are not foreseen."""
    return None


def cancel_pattern(rule: CancelOn) -> Pattern | None:
    """What an event of this type must match to cancel; None: every one does."""
    return _pattern(None, None, rule.filter)


@lru_cache(maxsize=20_000)
def _pattern(source: str | None, source_prefix: str | None, text: str | None) -> Pattern | None:
    fields: dict[str, Any] = {} if text is None else msgspec.json.decode(text)
    if source is not None:
        fields["source"] = [source]
    elif source_prefix is not None:
        fields["source"] = [{"prefix": source_prefix}]
    return compile_pattern(fields) if fields else None
