"""`ondot cron explain`: a schedule in words, with its next fires and the effect of clock changes and calendars (S9).

Needs no server and no settings, and answers as a server would: the flags become the body of
`POST /v1/schedules/preview`, which `document` reads. The time zones are those of the tzdata package, as for the server.
"""

from dataclasses import asdict
from datetime import UTC, datetime, tzinfo
from typing import Annotated, Any, Final

import typer

from ondot.cli.body import FLAG_AT, body_of_flags, in_flags
from ondot.cli.flags import OF_SCHEDULE, takes_flags
from ondot.cli.options import Fires, Output
from ondot.cli.output import Format, Json, harmless, show, show_items, show_line
from ondot.model.errors import InvalidBody

app = typer.Typer(help="Schedules, without a server.", no_args_is_help=True)

ARGUMENTS: Final = FLAG_AT | {"/schedule/cron": "EXPR", "/after": "--after"}
"""The argument that a part of the body came from."""


@app.callback()
def cron() -> None:
    """Schedules, without a server."""


@app.command()
@takes_flags(OF_SCHEDULE)
def explain(
    expression: Annotated[
        str | None, typer.Argument(metavar="EXPR", help='For example "0 9 * * 1-5", or @daily.', show_default=False)
    ] = None,
    timezone: Annotated[str, typer.Option("--timezone", "-z", help="An IANA time zone.")] = "UTC",
    after: Annotated[
        str | None,
        typer.Option(help="Show the fires after this instant; without an offset it is local time. By default, now."),
    ] = None,
    n: Fires = 10,
    *,
    output: Output = Format.TABLE,
    **flags: Any,
) -> None:
    """Explain a cron expression in words, with its next fires and remarks where the clocks change.

    With --rrule or --every instead of EXPR, explain that schedule.
    """
    others = [f"--{kind}" for kind in ("rrule", "every") if flags[kind] is not None]
    if expression is None and not others:
        raise typer.BadParameter("Say when: EXPR, or --rrule, or --every.", param_hint="EXPR")
    if expression is not None and others:
        raise typer.BadParameter(f"Give EXPR or {others[0]}, not both: they are two schedules.", param_hint=others[0])
    schedule = body_of_flags({**flags, "cron": expression, "timezone": timezone}, changes=True)["schedule"]
    show_preview(preview_schedule(schedule, after, timezone, n), output)


def preview_schedule(schedule: dict[str, Any], after: str | None, timezone: str, n: int) -> Json:
    """The answer that `POST /v1/schedules/preview` would send."""
    from ondot.document.requests import preview_request
    from ondot.model.schedule import preview

    try:
        instant = None if after is None else _instant(after, timezone)
        rule, instant, n = preview_request({"schedule": schedule, "n": n}, datetime.now(UTC), after=instant)
        return asdict(preview(rule, instant, n))
    except InvalidBody as refusal:
        raise in_flags(refusal, ARGUMENTS) from refusal


def show_preview(answer: Json, output: Format, none: str | None = None) -> None:
    """The next fires of an expression or of a job; `none` is the sentence to show if there are none."""
    if not output.is_table:
        return show_items(answer, answer["fires"], output)
    from ondot.cli.views import preview_table

    show_line(answer["in_words"])
    if answer["fires"] or answer["skipped"]:
        return show(preview_table(answer, datetime.now(UTC)), output)
    return show_line(harmless(none or "No further fires."))


def _instant(written: str, timezone: str) -> datetime:
    try:
        at = datetime.fromisoformat(written)
        return (at.replace(tzinfo=_zone(timezone)) if at.tzinfo is None else at).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise typer.BadParameter(
            f"{written!r} is not an instant. Write 2026-03-29T00:00:00Z, or 2026-03-29 for local time.",
            param_hint="--after",
        ) from error


def _zone(name: str) -> tzinfo:
    from ondot.model.schedule.dst import zone_info

    try:
        return zone_info(name)
    except InvalidBody:
        return UTC  # `document` rejects the zone, in its own words
