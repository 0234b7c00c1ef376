"""When a worker trusts a transport: the decisions of `model.beats`, by properties (C5, L5)."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from ondot.model.beats import IN_A_ROW, POLL_S, RARE_POLL_S, SILENT_S, Beat, Heard, hear, poll_at_s
from tests.proves import proves

NODE, OTHER = UUID(int=1), UUID(int=2)

pauses = st.floats(min_value=0.0, max_value=3.0)
arrivals = st.lists(st.tuples(st.sampled_from([NODE, OTHER]), st.integers(1, 12), pauses), max_size=30)


def listen(arrived: list[tuple[UUID, int, float]]) -> tuple[Heard | None, float]:
    heard, now_s = None, 0.0
    for sender, number, pause_s in arrived:
        now_s += pause_s
        heard = hear(heard, Beat(sender, number), now_s)
    return heard, now_s


@proves("L5")
@given(arrivals)
def test_trust_needs_the_last_three_numbers_of_one_sender_without_silence(
    arrived: list[tuple[UUID, int, float]],
) -> None:
    heard, now_s = listen(arrived)
    if heard is None or not heard.is_trusted(now_s):
        return
    last = heard.last
    came = {number for sender, number, _ in arrived if sender == last.sender}
    assert {last.number - back for back in range(IN_A_ROW)} <= came


@proves("L5")
@given(st.integers(0, 10**12), st.lists(st.floats(0.0, SILENT_S - 0.01), min_size=3, max_size=20))
def test_beats_without_a_gap_or_silence_keep_trust(first: int, waits: list[float]) -> None:
    now_s = 0.0
    heard = None
    for number, pause_s in enumerate(waits):
        now_s += pause_s
        heard = hear(heard, Beat(NODE, first + number), now_s)
        if number >= IN_A_ROW:
            assert heard.gaps == 0
    assert heard is not None
    assert heard.is_trusted(now_s)
    assert not heard.is_trusted(now_s + SILENT_S)


@proves("L5")
@given(st.integers(1, 100), st.integers(2, 50))
def test_a_gap_ends_trust_at_once_and_three_beats_gain_it_again(number: int, gap: int) -> None:
    heard, now_s = listen([(NODE, number + n, 0.5) for n in range(4)])
    assert heard is not None
    assert heard.is_trusted(now_s)
    heard = hear(heard, Beat(NODE, number + 3 + gap), now_s)
    assert not heard.is_trusted(now_s)
    assert heard.gaps == 1
    for n in (1, 2):
        heard = hear(heard, Beat(NODE, number + 3 + gap + n), now_s + n * 0.5)
    assert heard.is_trusted(now_s + 1.0)


@given(arrivals)
def test_beats_that_come_again_or_late_change_nothing(arrived: list[tuple[UUID, int, float]]) -> None:
    heard, now_s = listen(arrived)
    if heard is not None:
        for number in (heard.last.number, heard.last.number - 1):
            assert hear(heard, Beat(heard.last.sender, number), now_s + 0.1) == heard


def test_another_sender_must_gain_trust_first() -> None:
    heard, now_s = listen([(NODE, n, 0.5) for n in range(4)])
    assert not hear(heard, Beat(OTHER, 4), now_s).is_trusted(now_s)


@proves("L5")
@given(st.floats(0, 100), st.floats(0, 30), st.one_of(st.none(), st.floats(0, 140)))
def test_a_worker_asks_each_second_without_trust_and_each_15_s_with_it(
    asked_s: float, since_s: float, trusted_until_s: float | None
) -> None:
    now_s = asked_s + since_s
    at_s = poll_at_s(asked_s, now_s, trusted_until_s)
    assert asked_s + POLL_S <= at_s <= asked_s + RARE_POLL_S
    if trusted_until_s is None or trusted_until_s <= now_s:
        assert at_s == asked_s + POLL_S
    else:
        assert at_s <= max(trusted_until_s, asked_s + POLL_S)
