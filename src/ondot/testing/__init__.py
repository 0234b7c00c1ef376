"""For users' tests: a whole ondot whose clock the test turns (O7). A year of schedules takes seconds.

    from ondot.testing import open_world

    async with open_world(app, at="2026-01-01T00:00:00Z") as world:
        await world.run_until("2027-01-01T00:00:00Z")
        assert len(world.calls("daily_report")) == 261

The engine is the real one on a real PostgreSQL, which is started once in a process and removed at its end. Only time is
faked, and the network for HTTP targets. In pytest the fixture `ondot_world` is `open_world`.

opening  open_world
world    World: the methods that a test calls
engine   the passes of schedulers and workers, from one instant to the next
clock    the clock that the test turns
server   the PostgreSQL of a process, and a database for each world
api      the real API without a network, behind the SDK's client
http     the answers that HTTP targets get
records  calls, executions, runs, skipped fires and requests
failures functions that fail when the test says so
plugin   the pytest plugin

Names are loaded on first use: pytest imports the plugin in every project that has ondot installed.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ondot.testing.opening import open_world
    from ondot.testing.records import Call, Execution, Request, Run, Skipped
    from ondot.testing.world import World

__all__ = ["Call", "Execution", "Request", "Run", "Skipped", "World", "open_world"]


def __getattr__(name: str) -> object:
    if name in __all__:
        try:
            from ondot.testing import opening, records, world
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"A world is a whole ondot, and {error.name} is not installed: pip install 'ondot[server,embedded]'.",
                name=error.name,
            ) from error
        return next(vars(module)[name] for module in (opening, world, records) if name in vars(module))
    raise AttributeError(f"module 'ondot.testing' has no attribute {name!r}")
