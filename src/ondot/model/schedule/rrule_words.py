"""A recurrence rule in words (S9): one sentence for common rules, the text itself for others.

The sentence covers FREQ, INTERVAL, BYMONTH, BYDAY or BYMONTHDAY, the times of day, COUNT and UNTIL of a single rule.
Parts that come from DTSTART are included, so that "every month" names the day.
"""

from typing import TYPE_CHECKING, Final

from ondot.model.schedule.rrule_text import Frequency, Nth, Recurrence, Rule, read

if TYPE_CHECKING:
    from datetime import datetime

    from ondot.model.schedule.rrule import Rrule

_WEEKDAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS: Final = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_UNITS: Final = ("year", "month", "week", "day", "hour", "minute", "second")
_ORDINALS: Final = {1: "first", 2: "second", 3: "third", 4: "fourth", 5: "fifth", -1: "last", -2: "second to last"}
_MOST_TIMES: Final = 4


def rrule_in_words(rrule: "Rrule") -> str:
    """ "Every 2 weeks on Monday and Thursday at 09:00", without the zone."""
    recurrence = read(rrule.text)
    sentence = _sentence(recurrence, rrule.begins)
    return f"By the recurrence rule {' '.join(recurrence.text.split())}" if sentence is None else sentence


def _sentence(recurrence: Recurrence, begins: "datetime") -> str | None:
    if len(recurrence.rules) != 1 or recurrence.dates or recurrence.excluded:
        return None
    (rule,) = recurrence.rules
    if rule.positions or rule.weeks or rule.year_days:
        return None
    days, times = _days(rule, begins), _times(rule, begins)
    if days is None or times is None:
        return None
    unit = _UNITS[rule.frequency]
    every = f"Every {unit}" if rule.interval == 1 else f"Every {rule.interval} {unit}s"
    months = f"in {_join([_MONTHS[month - 1] for month in rule.months])}" if rule.months else ""
    ends = ""
    if rule.count is not None:
        ends = ", once" if rule.count == 1 else f", {rule.count} times"
    elif rule.until is not None:
        ends = f", until {rule.until.time:%Y-%m-%d}"
    return " ".join(filter(None, (every, days, months, times))) + ends


def _days(rule: Rule, begins: "datetime") -> str | None:
    """The days of the period in words; "" for all of them, None if that takes more than a few words."""
    if rule.frequency < Frequency.WEEKLY:
        return None if rule.weekdays and rule.month_days else _days_of_month(rule, begins)
    if rule.month_days or (rule.frequency > Frequency.WEEKLY and rule.weekdays and rule.interval > 1):
        return None
    weekdays = rule.weekdays or ((Nth(0, begins.weekday()),) if rule.frequency == Frequency.WEEKLY else ())
    return f"on {_weekdays(weekdays)}" if weekdays else ""


def _days_of_month(rule: Rule, begins: "datetime") -> str | None:
    is_of_year = rule.frequency == Frequency.YEARLY and not rule.months
    if rule.weekdays:
        if not any(nth.n for nth in rule.weekdays):
            return f"on every {_join([_WEEKDAYS[nth.weekday] for nth in rule.weekdays])}"
        if is_of_year or any(nth.n not in _ORDINALS for nth in rule.weekdays):
            return None
        return f"on the {_join([f'{_ORDINALS[nth.n]} {_WEEKDAYS[nth.weekday]}' for nth in rule.weekdays])}"
    if rule.month_days:
        return f"on {_month_days(rule.month_days)}"
    return f"on {begins.day} {_MONTHS[begins.month - 1]}" if is_of_year else f"on day {begins.day}"


def _weekdays(nths: tuple[Nth, ...]) -> str:
    weekdays = sorted({nth.weekday for nth in nths})
    if len(weekdays) > 2 and weekdays == list(range(weekdays[0], weekdays[-1] + 1)):
        return f"{_WEEKDAYS[weekdays[0]]} to {_WEEKDAYS[weekdays[-1]]}"
    return _join([_WEEKDAYS[weekday] for weekday in weekdays])


def _month_days(days: tuple[int, ...]) -> str:
    counted = [str(day) for day in days if day > 0]
    words = [f"day {_join(counted)}"] if counted else []
    words += ["the last day" if day == -1 else f"day {-day} from the end" for day in days if day < 0]
    return _join(words)


def _times(rule: Rule, begins: "datetime") -> str | None:
    if rule.frequency > Frequency.DAILY:
        return None if rule.hours or rule.minutes or rule.seconds else ""
    hours, minutes = rule.hours or (begins.hour,), rule.minutes or (begins.minute,)
    seconds = rule.seconds or (begins.second,)
    if len(hours) * len(minutes) * len(seconds) > _MOST_TIMES:
        return None
    times = sorted((hour, minute, second) for hour in hours for minute in minutes for second in seconds)
    has_seconds = any(second for _, _, second in times)
    return "at " + _join(
        [f"{hour:02}:{minute:02}" + (f":{second:02}" if has_seconds else "") for hour, minute, second in times]
    )


def _join(items: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(items[:-1]), items[-1])))
