"""`ondot report` (O10): what went wrong last night, the worst first, with the command that repairs each.

Plain lines, so that a mail from cron reads well; `--exit-code` says whether a person is needed.
"""

import os
from itertools import groupby
from typing import Annotated, Any, Final

import typer

from ondot.cli.calling import ask
from ondot.cli.errors import FAILED
from ondot.cli.options import JobId, Limit, Output
from ondot.cli.output import Format, exact, instant_of, show_document, show_line

Json = dict[str, Any]

LINK: Final = "/etc/localtime"


def report(
    since: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="From when: 24h, 90m, yesterday or today (midnight in your zone), or an instant.",
        ),
    ] = "24h",
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Until when. By default, now.")] = None,
    zone: Annotated[
        str | None, typer.Option(metavar="ZONE", help="An IANA time zone. By default, that of this machine.")
    ] = None,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 if something needs a person, for cron and CI.")
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """Show what went wrong: missed, failed, late, held back, lost and more, with the commands that repair it."""
    answer = ask(lambda client: client.get_report(since, until, zone or local_zone()))
    if output.is_table:
        _show(answer)
    else:
        show_document(answer, output)
    if exit_code and answer["open"]:
        raise typer.Exit(FAILED)


def misses(job_id: JobId, limit: Limit = 20, output: Output = Format.TABLE) -> None:
    """List when a job did not meet what is expected of it, and why."""
    answer = ask(lambda client: client.list_misses(job_id, limit))
    if not output.is_table:
        return show_document(answer, output)
    if not answer["items"]:
        return show_line("It missed nothing in the last 90 days.")
    for miss in answer["items"]:
        due = instant_of(miss["due_at"])
        state = "open" if miss["cleared_at"] is None else "withdrawn" if miss["predicted"] else "came good"
        what = "will miss" if miss["predicted"] and miss["cleared_at"] is None else "missed"
        times = f", {miss['count']:,} fires" if miss["count"] > 1 else ""
        show_line(f"{exact(due) if due else ''}  {what} {miss['which']}{times} ({state})")
        show_line(f"  {miss['reason']}")
    return None


def local_zone() -> str | None:
    """The name of this machine's zone; None if it cannot be known, which means UTC."""
    named = os.environ.get("TZ", "").lstrip(":")
    if not named:
        try:
            named = os.path.realpath(LINK).partition("/zoneinfo/")[2]
        except OSError:
            return None
    from ondot.model.errors import InvalidSchedule
    from ondot.model.schedule.dst import zone_info

    try:
        zone_info(named)
    except InvalidSchedule:
        return None
    return named


def _show(answer: Json) -> None:
    from ondot.model.report.findings import TITLES
    from ondot.model.schedule.dst import zone_info

    zone = zone_info(answer["zone"])

    def at(written: object, form: str = "%a %d %b %H:%M") -> str:
        instant = instant_of(written)
        return "" if instant is None else f"{instant.astimezone(zone):{form}}"

    show_line(f"{at(answer['since'])} to {at(answer['until'])}, {answer['zone']}")
    show_line(answer["summary"])
    needed = [one for one in answer["findings"] if one["is_open"]]
    others = [one for one in answer["findings"] if not one["is_open"]]
    for heading, findings in (("", needed), ("No person is needed for:", others)):
        if findings and heading:
            show_line("")
            show_line(heading)
        for kind, alike in groupby(findings, key=lambda one: one["kind"]):
            show_line("")
            show_line(TITLES.get(kind, kind).upper() if not heading else f"  {TITLES.get(kind, kind)}")
            for finding in alike:
                _show_finding(finding, at(finding["last_at"]))
    for limit in answer["limits"]:
        show_line("")
        show_line(f"Note: {limit}")


def _show_finding(finding: Json, last_at: str) -> None:
    name = finding["job_name"] or (f"pool {finding['pool']}" if finding["pool"] else "ondot")
    least = "at least " if finding["is_least"] else ""
    count = f"{least}{finding['count']:,}"
    mark = " (repaired)" if finding["is_repaired"] else ""
    if finding["repaired"] and not finding["is_repaired"]:
        mark = f" ({finding['repaired']:,} repaired)"
    show_line(f"  {name}: {count}, last {last_at}{mark}")
    show_line(f"    {finding['reason']}")
    for repair in finding["repair"]:
        show_line(f"    {repair['label']}: {repair['command']}")
