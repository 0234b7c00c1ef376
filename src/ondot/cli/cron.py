"""`ondot cron explain`: a cron expression in words, with its next fires and what the clocks do to them (S9).

Needs no server and no settings. The zones are those of the tzdata package, as for the server: both agree on every fire.
"""

import zoneinfo
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ondot.cli.options import Output
from ondot.cli.output import Format, Json, rfc_3339, show, show_json, show_json_lines, show_line

if TYPE_CHECKING:
    from ondot.model.schedule import Preview

app = typer.Typer(help="Cron expressions, without a server.", no_args_is_help=True)


@app.callback()
def cron() -> None:
    """Cron expressions, without a server."""


@app.command()
def explain(
    expression: Annotated[
        str, typer.Argument(metavar="EXPR", help='For example "0 9 * * 1-5", or @daily.', show_default=False)
    ],
    timezone: Annotated[str, typer.Option("--timezone", "-z", help="An IANA time zone.")] = "UTC",
    after: Annotated[
        str | None,
        typer.Option(help="The fires after this instant; without an offset it is local time. Now, if left out."),
    ] = None,
    n: Annotated[int, typer.Option("-n", min=1, max=1000, help="How many fires.")] = 10,
    gap: Annotated[Literal["shift", "skip"], typer.Option(help="A fire in the hour that is left out.")] = "shift",
    fold: Annotated[
        Literal["first", "last", "both"], typer.Option(help="A fire in the hour that comes twice.")
    ] = "first",
    output: Output = Format.TABLE,
) -> None:
    """Tell an expression in words, with its next fires and remarks where the clocks change."""
    from ondot.model.schedule import Cron, Dst, Schedule, check, preview

    zoneinfo.reset_tzpath(to=())
    schedule = Schedule(when=Cron(expression=expression, timezone=timezone, dst=Dst(gap=gap, fold=fold)))
    check(schedule)
    answer = as_answer(preview(schedule, _instant(after, timezone), n))
    show_preview(answer, output)


def show_preview(answer: Json, output: Format) -> None:
    """Coming fires, of an expression or of a job."""
    match output:
        case Format.JSON:
            show_json(answer)
        case Format.JSONL:
            show_json_lines(answer["fires"])
        case Format.TABLE:
            from ondot.cli.views import preview_table

            show_line(answer["in_words"])
            if answer["fires"] or answer["skipped"]:
                show(preview_table(answer, datetime.now(UTC)))
            else:
                show_line("No further fires.")


def as_answer(told: "Preview") -> dict[str, Any]:
    """As `POST /v1/schedules/preview` answers."""
    return {
        "in_words": told.in_words,
        "fires": [
            {"fire_at": rfc_3339(fire.fire_at), "local": fire.local, "remark": fire.remark} for fire in told.fires
        ],
        "skipped": [{"local": skipped.local, "reason": skipped.reason} for skipped in told.skipped],
    }


def _instant(written: str | None, timezone: str) -> datetime:
    if written is None:
        return datetime.now(UTC)
    try:
        at = datetime.fromisoformat(written)
        return (at.replace(tzinfo=zoneinfo.ZoneInfo(timezone)) if at.tzinfo is None else at).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise typer.BadParameter(
            f"{written!r} is no instant: write 2026-03-29T00:00:00Z, or 2026-03-29 for local time.",
            param_hint="--after",
        ) from error
