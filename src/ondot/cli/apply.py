"""`ondot job apply -f FILE`: create and update jobs from a file. Applying a file twice changes nothing.

Each job has a `key`, by which the server finds it again (S12). A file is one transaction: all of its jobs or none. The
versions before and after show the result of each job. A dry run reads and compares, and changes nothing.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ondot.cli.body import reject_surrogates
from ondot.cli.calling import ask
from ondot.cli.errors import named_once
from ondot.cli.flags import parse_json, text_of_file
from ondot.cli.options import Output
from ondot.cli.output import Format, show, show_items, show_line, show_notice
from ondot.cli.pages import LARGEST_PAGE
from ondot.model.errors import Fault, InvalidBody, NotFound

if TYPE_CHECKING:
    from ondot.document.functions import KnownFunctions
    from ondot.sdk.client import Client

Json = dict[str, Any]

ASKED_BY_NAME: Final = 200
"""Up to this many jobs are looked up by name, with one request each; for more, all jobs are read instead."""

CREATED, CHANGED, UNCHANGED = "created", "changed", "unchanged"


def apply(
    file: Annotated[
        str, typer.Option("--file", "-f", metavar="FILE", help="JSON or JSON lines; - reads standard input.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Create the jobs of a file whose key is new, and change those that differ.

    The file contains a job, a list of jobs, {"jobs": […]}, or one job per line. Each job needs a key.
    """
    bodies = jobs_of_file(file)
    try:
        results = ask(lambda client: _compare(client, bodies) if dry_run else _send(client, bodies))
    except InvalidBody as refusal:
        raise with_keys(refusal, bodies) from None
    if not output.is_table:
        return show_items({"dry_run": dry_run, "items": results}, results, output)
    from ondot.cli.views import applied_table

    show(applied_table(results, dry_run=dry_run), output)
    return show_line(in_sum(results, dry_run=dry_run))


def jobs_of_file(name: str) -> list[Json]:
    """The jobs in a file, in their order."""
    text = text_of_file(name)
    bodies = _documents(text)
    if not bodies:
        raise typer.BadParameter("The file contains no job.", param_hint="-f")
    for number, body in enumerate(bodies, 1):
        if not isinstance(body, dict):
            raise typer.BadParameter(f"Job {number} is not a JSON object, in braces.", param_hint="-f")
        if not isinstance(body.get("key"), str) or not body["key"]:
            called = f" ({body['name']})" if isinstance(body.get("name"), str) else ""
            advice = 'Add one, for example "key": "nightly-report", so that the job can be found again.'
            raise typer.BadParameter(f"Job {number}{called} has no key. {advice}", param_hint="-f")
        reject_surrogates(body)
    return bodies


def with_keys(refusal: InvalidBody, bodies: Sequence[Json]) -> InvalidBody:
    """The same faults, each with the key of its job: authors of a file do not count its jobs."""
    faults = tuple(Fault(_place(fault.pointer, bodies), named_once(fault)) for fault in refusal.faults)
    return type(refusal)(refusal.message, faults=faults)


def _place(pointer: str, bodies: Sequence[Json]) -> str:
    jobs, _, inner = pointer.removeprefix("/").partition("/")
    number = inner.partition("/")[0]
    if jobs != "jobs" or not number.isdecimal() or int(number) >= len(bodies):
        return pointer
    return f"{pointer} (job {bodies[int(number)]['key']})"


def result_of(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> str:
    """The result of a job. One that was not found before, but has a version above 1, had another name."""
    if before is None:
        return CREATED if after["version"] == 1 else CHANGED
    return UNCHANGED if after["version"] == before["version"] else CHANGED


def in_sum(results: Sequence[Json], *, dry_run: bool) -> str:
    counts = {result: sum(item["result"] == result for item in results) for result in (CREATED, CHANGED, UNCHANGED)}
    summary = ", ".join(f"{count} {result}" for result, count in counts.items() if count)
    return f"Dry run: {summary}." if dry_run else f"{summary[:1].upper()}{summary[1:]}."


def differences(before: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """The fields of a job that differ, by their dotted names."""
    found: list[str] = []
    for field, value in wanted.items():
        there = before.get(field)
        if isinstance(value, dict) and isinstance(there, dict) and field != "payload":
            inner = sorted(value.keys() | there.keys())
            found.extend(f"{field}.{name}" for name in inner if value.get(name) != there.get(name))
        elif value != there:
            found.append(field)
    return found


def _documents(text: str) -> list[Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) > 1 and all(line.lstrip().startswith("{") and line.rstrip().endswith("}") for line in lines):
            return [parse_json(line, f"-f, line {number}") for number, line in enumerate(lines, 1)]
        document = parse_json(text, "-f")
    if isinstance(document, dict):
        jobs = document.get("jobs")
        return jobs if isinstance(jobs, list) and len(document) == 1 else [document]
    return document if isinstance(document, list) else [document]


async def _send(client: "Client", bodies: Sequence[Json]) -> list[Json]:
    known = await _existing(client, bodies)
    items = (await client.create_jobs(bodies))["items"]
    results = []
    for body, job in zip(bodies, items, strict=True):
        before = known.get(body["key"])
        result = result_of(before, job)
        fields = differences(before, _spec_of(job)) if before and result == CHANGED else []
        results.append(_result(job["id"], body["key"], job["name"], result, job["version"], fields))
        for warning in job.get("warnings", ()):
            show_notice(f"Warning: {body['key']}: {warning['detail']}")
    return results


async def _compare(client: "Client", bodies: Sequence[Json]) -> list[Json]:
    from ondot.document.merge_patch import base_of
    from ondot.document.parse import job_specs

    functions = await find_functions(client, bodies)
    specs = job_specs({"jobs": list(bodies)}, datetime.now(UTC), functions=functions)
    known = await _existing(client, bodies, to_the_end=True)
    results = []
    for body, spec in zip(bodies, specs, strict=True):
        before = known.get(body["key"])
        if before is None:
            results.append(_result(None, body["key"], spec.name, CREATED, 1, []))
            continue
        wanted = json.loads(json.dumps(base_of(spec)))
        if spec.schedule is None:
            wanted.pop("schedule")  # "now" is another instant each time, but no change
        for rule, new in zip(_rules(before.get("schedule")), _rules(wanted.get("schedule")), strict=False):
            if "anchor_at" not in new:
                rule.pop("anchor_at", None)  # the server chose it, so it is no difference
        fields = differences(before, wanted)
        version = before["version"] + 1 if fields else before["version"]
        result = CHANGED if fields else UNCHANGED
        results.append(_result(before["id"], body["key"], spec.name, result, version, fields))
    return results


async def find_functions(client: "Client", bodies: Sequence[Json]) -> "KnownFunctions":
    """What the server knows of the functions that these jobs name: it fills in their options."""
    from ondot.document.functions import KnownFunction, KnownFunctions
    from ondot.document.known import check_options
    from ondot.document.shorthand import to_long_form

    targets = [to_long_form(body).body.get("target") for body in bodies]
    names = {target["function"] for target in targets if isinstance(target, dict) and "function" in target}
    known = {}
    for name in sorted(name for name in names if isinstance(name, str)):
        with suppress(NotFound):
            found = await client.get_function(name)
            arguments = (found["arguments"] or {}).get("properties", {})
            defaults = {one: part["default"] for one, part in arguments.items() if "default" in part}
            known[name] = KnownFunction(name, check_options(name, found["options"]), defaults)
    return KnownFunctions(known)


def _rules(schedule: Json | None) -> list[Json]:
    return [] if schedule is None else [schedule, *schedule["include"], *schedule["exclude"]]


async def _existing(client: "Client", bodies: Sequence[Json], *, to_the_end: bool = False) -> dict[str, Json]:
    """The jobs that have these keys. By name first, because the API cannot look up keys; then, if needed, all."""
    keys = {body["key"] for body in bodies}
    names = {body.get("name") for body in bodies}
    found: dict[str, Json] = {}
    if len(names) <= ASKED_BY_NAME and None not in names:
        for name in names:
            await _read(client, keys, found, name=name)
        if not to_the_end:
            return found
    if keys - found.keys():
        await _read(client, keys, found)
    return found


async def _read(client: "Client", keys: set[str], found: dict[str, Json], **filters: Any) -> None:
    cursor = None
    while True:
        page = await client.list_jobs(**filters, limit=LARGEST_PAGE, cursor=cursor)
        found.update({job["key"]: job for job in page["items"] if job["key"] in keys})
        cursor = page["next_cursor"]
        if cursor is None or keys <= found.keys():
            return


def _spec_of(job: Json) -> Json:
    from ondot.document.render import SPEC_FIELDS

    return {field: value for field, value in job.items() if field in SPEC_FIELDS}


def _result(id_: str | None, key: str, name: str, result: str, version: int, fields: list[str]) -> Json:
    return {"key": key, "name": name, "id": id_, "result": result, "version": version, "changes": fields}
