"""What the self-check remembers: nothing is found that was not there for a while, as it was."""

from ondot.model.check import CONFIRM_AFTER_S, CONFIRM_SOONEST_S, MEANINGS, Kind, Memory, Suspect
from tests.proves import proves

UNQUEUED = [Suspect(Kind.UNQUEUED, "executions", (number, 0)) for number in range(5)]
LEASE = Suspect(Kind.EMPTY_LEASE, "leases", ("lease", "worker"))


@proves("P5")
def test_a_suspect_is_ripe_after_a_while_from_when_it_was_first_seen_and_taken_once() -> None:
    memory = Memory()
    memory.suspect(UNQUEUED[:1], monotonic_s=100.0)
    memory.suspect(UNQUEUED[:2], monotonic_s=105.0)
    assert memory.take_ripe(monotonic_s=100.0 + CONFIRM_SOONEST_S - 0.1, limit=10) == []
    assert memory.take_ripe(monotonic_s=100.0 + CONFIRM_SOONEST_S, limit=10) == UNQUEUED[:1]
    assert memory.take_ripe(monotonic_s=105.0 + CONFIRM_SOONEST_S, limit=10) == UNQUEUED[1:2]
    assert memory.take_ripe(monotonic_s=1000.0, limit=10) == []


@proves("P5")
def test_what_has_changed_is_another_suspect() -> None:
    memory = Memory()
    memory.suspect(UNQUEUED[:1], monotonic_s=0.0)
    memory.suspect([Suspect(Kind.UNQUEUED, "executions", (0, 1))], monotonic_s=9.0)
    assert memory.take_ripe(monotonic_s=CONFIRM_SOONEST_S, limit=10) == UNQUEUED[:1]


@proves("P5")
def test_suspects_are_taken_by_kind_some_at_a_time_and_each_kind_has_its_while() -> None:
    memory = Memory()
    memory.suspect([LEASE, *UNQUEUED], monotonic_s=0.0)
    assert memory.take_ripe(monotonic_s=CONFIRM_SOONEST_S, limit=3) == UNQUEUED[:3]
    assert memory.take_ripe(monotonic_s=CONFIRM_AFTER_S["leases"], limit=3) == [LEASE]
    assert memory.take_ripe(monotonic_s=CONFIRM_AFTER_S["leases"], limit=3) == UNQUEUED[3:]


@proves("N6")
def test_so_many_suspects_are_enough() -> None:
    memory = Memory(most=5)
    full = []
    for suspects in (UNQUEUED[:4], UNQUEUED[4:]):
        memory.suspect(suspects, monotonic_s=0.0)
        full.append(memory.is_full)
    memory.take_ripe(monotonic_s=60.0, limit=1)
    assert [*full, memory.is_full] == [False, True, False]


def test_what_stays_as_it_is_is_counted_once() -> None:
    memory = Memory()
    assert memory.select_new(UNQUEUED[:2]) == UNQUEUED[:2]
    assert memory.select_new(UNQUEUED[:3]) == UNQUEUED[2:3]


def test_every_kind_has_a_meaning() -> None:
    assert set(MEANINGS) == set(Kind)
