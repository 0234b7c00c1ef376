"""`ondot version`."""

from ondot import __version__
from ondot.cli.output import show_line


def version() -> None:
    """Print the version."""
    show_line(f"ondot {__version__}")
