from ondot.telemetry.log_throttle import LogThrottle


def test_what_happens_often_is_told_now_and_then_with_how_often_it_was() -> None:
    now_s = 100.0
    seldom = LogThrottle(10, lambda: now_s)
    assert [seldom.times() for _ in range(4)] == [1, 0, 0, 0]
    now_s = 110.0
    assert [seldom.times() for _ in range(2)] == [4, 0]
    now_s = 500.0
    assert seldom.times() == 2
