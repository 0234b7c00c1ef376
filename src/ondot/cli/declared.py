"""`ondot job diff`, `reset`, `adopt`: what the code declares of a job, and the ways back to it (D4).

`diff` exits with 1 if the job differs from the code, as diff and `kubectl diff` do; with 0 if it does not.
"""

from typing import Annotated, Any

import typer

from ondot.cli.calling import ask
from ondot.cli.options import JobId, Output, Reason
from ondot.cli.output import Format, cell, compact, show, show_answer, show_document, show_line, table

Json = dict[str, Any]
DIFFERS = 1


def diff(
    job_id: JobId,
    every: Annotated[bool, typer.Option("--all", help="Also show the fields that are as declared.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Show what the code declares, what was changed by hand, and what is in force. Exit with 1 if they differ."""
    declared = ask(lambda client: client.declared_job(job_id))
    differing = [one for one in declared["fields"] if one["differs"]]
    if not output.is_table:
        show_document(declared, output)
    else:
        show_line(declared["in_words"])
        for refused in declared["refused"]:
            show_line(f"Refused to {refused['app']}, release {refused['release']}: {refused['why']}")
        if shown := declared["fields"] if every else differing:
            drawn = table("FIELD", "CODE", "BY HAND", "IN FORCE")
            for one in shown:
                code, by_hand, in_force = one["code"], one["by_hand"], one["in_force"]
                if one["differs"] and output is Format.TABLE:
                    code, by_hand, in_force = _only_differing(code, by_hand, in_force)
                changed = cell(_value(by_hand), style="yellow") if one["differs"] else ""
                drawn.add_row(cell(one["field"], style="bold"), _value(code), changed, _value(in_force))
            show(drawn, output)
    if differing:
        raise typer.Exit(DIFFERS)


def reset(
    job_id: JobId,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would change.")] = False,
    reason: Reason = None,
    output: Output = Format.TABLE,
) -> None:
    """Go back to what the code declares: undo what was changed by hand. A pause stays."""
    answer = ask(lambda client: client.reset_job(job_id, reason, dry_run=dry_run))
    fields = ", ".join(answer["changed"])
    if not fields:
        words = "Nothing to reset: the job is as the code declares it."
    elif dry_run:
        words = f"Would reset: {fields}."
    else:
        words = f"Reset: {fields}. Version {answer['version']}."
    show_answer(answer, output, words)


def adopt(
    job_id: JobId,
    app: Annotated[str, typer.Argument(metavar="APP", help="The app that declares the job from now on.")],
    reason: Reason = None,
    output: Output = Format.TABLE,
) -> None:
    """Hand a job over to another app: that app's declarations of its key count from now on."""
    declared = ask(lambda client: client.adopt_job(job_id, app, reason))
    show_answer(declared, output, f"{declared['name']} belongs to {declared['app']} from now on.")


def _only_differing(code: Any, *others: Any) -> tuple[Any, ...]:
    """Of objects, such as the rule of a schedule, the members that differ: the others would hide them at 80 columns."""
    if not all(isinstance(value, dict) for value in (code, *others)):
        return (code, *others)
    names = {name for other in others for name in code.keys() | other.keys() if code.get(name) != other.get(name)}
    return tuple({name: value[name] for name in value if name in names} for value in (code, *others))


def _value(value: Any) -> str:
    if isinstance(value, dict) and len(value) == 1:
        [(name, member)] = value.items()
        return f"{name}: {_value(member)}"
    return value if isinstance(value, str) else compact(value) or "–"
