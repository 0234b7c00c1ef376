from ondot.telemetry.log_throttle import LogThrottle


def test_a_frequent_event_is_logged_now_and_then_with_its_count() -> None:
    now_s = 100.0
    throttle = LogThrottle(10, lambda: now_s)
    assert [throttle.times() for _ in range(4)] == [1, 0, 0, 0]
    now_s = 110.0
    assert [throttle.times() for _ in range(2)] == [4, 0]
    now_s = 500.0
    assert throttle.times() == 2
