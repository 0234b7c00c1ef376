"""Bytes in words."""

from typing import Final

UNITS: Final = ("B", "kB", "MB", "GB", "TB")


def size_in_words(size: float) -> str:
    """With decimal units, as disks are sold: 1.5 GB."""
    number = 0
    while abs(size) >= 1000 and number < len(UNITS) - 1:
        size, number = size / 1000, number + 1
    return f"{size:.0f} {UNITS[number]}" if number == 0 or abs(size) >= 100 else f"{size:.1f} {UNITS[number]}"
