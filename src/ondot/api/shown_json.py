"""Values of users inside answers. Bodies are refused above 64 levels, but results of targets may be deeper, and the
encoder of answers stops at 255: one such result would take away every answer that shows it."""

from typing import Any, Final

import msgspec

MOST_LEVELS: Final = 200


def shown_json(value: Any) -> Any:
    """The value; as text if it is nested too deeply to be shown as JSON."""
    level, depth = [value], 0
    while level := [item for item in level if isinstance(item, (dict, list)) and item]:
        depth += 1
        if depth > MOST_LEVELS:
            return msgspec.json.encode(value).decode()
        level = [below for item in level for below in (item.values() if isinstance(item, dict) else item)]
    return value
