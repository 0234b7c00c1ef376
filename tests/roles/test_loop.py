"""How often a failing pass is retried: soon while the database is away, ever more rarely if it is at fault."""

import asyncio

import pytest
from structlog.testing import capture_logs

from ondot.model.errors import Unavailable
from ondot.roles import loop
from ondot.roles.loop import LONGEST_AFTER_FAULT_S, LONGEST_PAUSE_S, every, pause_after
from tests.proves import proves


async def pauses_after(faults: list[Exception], tick_s: float, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the loop would wait after each of these; here it does not."""
    pauses: list[float] = []

    def over_at_once(failures: int, tick_s: float, longest_s: float) -> float:
        pauses.append(pause_after(failures, tick_s, longest_s))
        return 0.0

    async def one_pass() -> int:
        if len(pauses) == len(faults):
            raise asyncio.CancelledError
        raise faults[len(pauses)]

    monkeypatch.setattr(loop, "pause_after", over_at_once)
    with capture_logs(), pytest.raises(asyncio.CancelledError):
        await every(tick_s, one_pass, name="failing")
    return pauses


@proves("L4")
@pytest.mark.parametrize("tick_s", [0.25, 1.0, 60.0])
async def test_a_pass_that_keeps_failing_pauses_longer_each_time_and_an_outage_never_for_long(
    tick_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [*[ValueError("broken")] * 12, *[Unavailable("away")] * 3]
    pauses = await pauses_after(faults, tick_s, monkeypatch)
    longest_s = max(tick_s, LONGEST_AFTER_FAULT_S)
    assert pauses[0] <= min(tick_s, 1.0)
    assert longest_s / 2 <= min(pauses[7:12]) <= max(pauses[:12]) <= longest_s
    assert max(pauses[12:]) <= LONGEST_PAUSE_S
