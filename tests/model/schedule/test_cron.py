"""S2 by example: each form a field may take, and each refusal with its advice."""

import pytest

from ondot.model.errors import InvalidSchedule
from ondot.model.schedule import check
from tests.model.schedule.making import cron, next_fires
from tests.proves import proves

SUNDAY = "2026-11-15 08:00"


@proves("S2")
@pytest.mark.parametrize(
    ("expression", "first", "second"),
    [
        ("*/5 * * * *", "2026-11-15 08:05:00", "2026-11-15 08:10:00"),
        ("30 */5 * * * *", "2026-11-15 08:00:30", "2026-11-15 08:05:30"),
        ("* * * * * *", "2026-11-15 08:00:01", "2026-11-15 08:00:02"),
        ("5/20 * * * *", "2026-11-15 08:05:00", "2026-11-15 08:25:00"),
        ("0 9-17/4 * * *", "2026-11-15 09:00:00", "2026-11-15 13:00:00"),
        ("0 9 * * 1-5", "2026-11-16 09:00:00", "2026-11-17 09:00:00"),
        ("0 9 * * mon-fri", "2026-11-16 09:00:00", "2026-11-17 09:00:00"),
        ("0 9 * * FRI-SUN", "2026-11-15 09:00:00", "2026-11-20 09:00:00"),
        ("0 0 * * SUN-SUN", "2026-11-22 00:00:00", "2026-11-29 00:00:00"),
        ("5-5/20 9 * * *", "2026-11-15 09:05:00", "2026-11-16 09:05:00"),
        ("0 0 * * 0", "2026-11-22 00:00:00", "2026-11-29 00:00:00"),
        ("0 0 * * 7", "2026-11-22 00:00:00", "2026-11-29 00:00:00"),
        ("0 0 1 jan,JUL *", "2027-01-01 00:00:00", "2027-07-01 00:00:00"),
        ("0 0 L * *", "2026-11-30 00:00:00", "2026-12-31 00:00:00"),
        ("0 0 LW * *", "2026-11-30 00:00:00", "2026-12-31 00:00:00"),
        ("0 0 L,1 * ?", "2026-11-30 00:00:00", "2026-12-01 00:00:00"),
        ("0 0 15W * *", "2026-11-16 00:00:00", "2026-12-15 00:00:00"),
        ("0 0 1W,15W * ?", "2026-11-16 00:00:00", "2026-12-01 00:00:00"),
        ("0 0 20,15W * *", "2026-11-16 00:00:00", "2026-11-20 00:00:00"),
        ("0 0 ? * 5#2", "2026-12-11 00:00:00", "2027-01-08 00:00:00"),
        ("0 0 * * FRI#2", "2026-12-11 00:00:00", "2027-01-08 00:00:00"),
        ("0 0 * * 5L", "2026-11-27 00:00:00", "2026-12-25 00:00:00"),
        ("0 0 * * FRIL", "2026-11-27 00:00:00", "2026-12-25 00:00:00"),
        ("0 0 29 2 *", "2028-02-29 00:00:00", "2032-02-29 00:00:00"),
        ("0 0 29 2 */7", "2032-02-29 00:00:00", "2060-02-29 00:00:00"),
        ("0 0 20 * 1", "2026-11-16 00:00:00", "2026-11-20 00:00:00"),
        ("0 0 */2 * 1", "2026-11-23 00:00:00", "2026-12-07 00:00:00"),
        ("@hourly", "2026-11-15 09:00:00", "2026-11-15 10:00:00"),
        ("@daily", "2026-11-16 00:00:00", "2026-11-17 00:00:00"),
        ("@midnight", "2026-11-16 00:00:00", "2026-11-17 00:00:00"),
        ("@weekly", "2026-11-22 00:00:00", "2026-11-29 00:00:00"),
        ("@monthly", "2026-12-01 00:00:00", "2027-01-01 00:00:00"),
        ("@yearly", "2027-01-01 00:00:00", "2028-01-01 00:00:00"),
        (" @Annually ", "2027-01-01 00:00:00", "2028-01-01 00:00:00"),
    ],
)
def test_every_form_of_a_field_is_understood(expression: str, first: str, second: str) -> None:
    check(cron(expression))
    assert next_fires(cron(expression), SUNDAY, 2) == [first, second]


@proves("S2")
@pytest.mark.parametrize(
    ("expression", "advice"),
    [
        ("75 * * * *", "minute field '75' must be 0 to 59"),
        ("60 * * * * *", "second field"),
        ("0 24 * * *", "hour field '24' must be 0 to 23"),
        ("0 0 0 * *", "day-of-month field"),
        ("0 0 1 FOO *", "JAN to DEC"),
        ("0 0 * * 8", "day-of-week field"),
        ("0 0 * * 5#6", "day-of-week field"),
        ("*/0 * * * *", "minute field"),
        ("0 0 L/2 * *", "day-of-month field"),
        ("0 0 32W * *", "day-of-month field"),
        ("0 22-2 * * *", "A range cannot run backwards"),
        ("? * * * *", "Write * in the minute field"),
        ("H(50-70) * * * *", "its range must be within 0 and 59"),
        ("H(30-0) * * * *", "not run backwards"),
        ("H/61 * * * *", "its step must be between 1 and 60"),
        ("H(0-9)/0 * * * *", "its step must be between 1 and 10"),
        ("H(0) * * * *", "write H, H/15, H(0-29) or H(0-29)/10"),
        ("H-30 * * * *", "write H, H/15, H(0-29) or H(0-29)/10"),
        ("0 0 * * H#2", "write H, H/15, H(0-29) or H(0-29)/10"),
        ("0 0 * * HL", "day-of-week field"),
        ("0 0 30 H *", 'some jobs would never fire, such as one that gets "0 0 30 2 *"'),
        ("0 0 H(29-31) 2 *", "never fire"),
        ("", "got 0"),
        ("0 0 * *", "got 4"),
        ("0 0 0 1 1 * 2026", "use start_at and end_at"),
        ("@every 90s", 'Use "every": "90s"'),
        ("0 9 * * 1-5 2026", "A year field does not exist: use start_at and end_at"),
        ("0 9 * * 1-5 2026-2028", "A year field does not exist: use start_at and end_at"),
        ("0 0 * * MON#", "the day-of-week field 'MON#' must be"),
        ("0 0 0 * * MON#", "the day-of-week field 'MON#' must be"),
        ("0 0 1 FOO *", "the month field 'FOO' must be"),
        ("0 0 */30 FEB MON#2", "month FEB has no day */30 that is a day-of-week MON#2"),
        ("@reboot", "the macros are @yearly"),
        ("@reboot", "@hourly, @every 90s. Use"),
        ("@daily 5", "the macros are @yearly"),
        ("9" * 5000 + " * * * *", "longer than 255"),
        ("0 0 30 2 *", "never fires: month 2 has no day 30"),
        ("0 0 31 4,6,9,11 *", "never fires"),
        ("0 0 30W 2 ?", "never fires"),
        ("0 0 */30 * 1#2", "never fires"),
    ],
)
def test_the_error_of_an_invalid_expression_names_the_field_and_what_to_do(expression: str, advice: str) -> None:
    with pytest.raises(InvalidSchedule) as refusal:
        check(cron(expression))
    (fault,) = refusal.value.faults
    assert fault.pointer == "/cron"
    assert advice in fault.message
    assert refusal.value.message == fault.message
