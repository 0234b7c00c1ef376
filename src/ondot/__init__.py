"""ondot: a distributed job scheduler on PostgreSQL.

    from ondot import Ondot, Context

Both are loaded when first asked for: the command line imports this package for its version alone.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ondot.sdk.app import Ondot
    from ondot.sdk.context import Context

__version__ = "0.1.0"

__all__ = ["Context", "Ondot", "__version__"]


def __getattr__(name: str) -> object:
    if name == "Ondot":
        from ondot.sdk.app import Ondot

        return Ondot
    if name == "Context":
        from ondot.sdk.context import Context

        return Context
    raise AttributeError(f"module 'ondot' has no attribute {name!r}")
