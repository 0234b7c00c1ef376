"""Writes the documents that come from the code, or checks that they are as written (`--check`).

reference/state-machine.md   from the transition table of model/execution.py
reference/cli.md             from the commands of cli/
reference/sdk.md             from the docstrings of sdk/
"""

import sys
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final

from docs.sdk import reference
from typer.core import TyperArgument, TyperGroup, TyperOption
from typer.main import get_command

from ondot.cli import app
from ondot.model.execution import TERMINAL, TRANSITIONS, Outcome, State

REFERENCE: Final = Path(__file__).parent / "reference"
EVERYWHERE: Final = {"--help", "--output", "--install-completion", "--show-completion"}


def state_machine() -> str:
    lines = [
        "# The state machine of executions",
        "",
        "Written by `docs/generate.py` from `src/ondot/model/execution.py`; `make check` fails when they differ.",
        "",
        "```mermaid",
        "stateDiagram-v2",
    ]
    for transition in TRANSITIONS:
        target = transition.target.value if transition.target else "[*]"
        sources = sorted(source.value for source in transition.sources) or ["[*]"]
        lines += [f"    {source} --> {target}: {transition.name}" for source in sources]
    lines += [f"    {state.value} --> [*]" for state in State if state in TERMINAL]
    lines += ["```", "", "| transition | from | to | why |", "|---|---|---|---|"]
    for transition in TRANSITIONS:
        left = ", ".join(sorted(source.value for source in transition.sources)) or "(new)"
        target = transition.target.value if transition.target else "(removed, without a trace)"
        lines.append(f"| {transition.name} | {left} | {target} | {transition.why} |")
    lines += [
        "",
        f"Terminal states, which an execution never leaves: {', '.join(s.value for s in State if s in TERMINAL)}.",
        f"Outcomes of an attempt: {', '.join(outcome.value for outcome in Outcome)}.",
        "",
    ]
    return "\n".join(lines)


def commands() -> str:
    root: Any = get_command(app)
    root.load_commands()
    lines = [
        "# Commands",
        "",
        "Written by `docs/generate.py` from `src/ondot/cli/`; `make check` fails when they differ.",
        "",
        "Commands that use a server find it by a [context](../guides/command-line.md#contexts), or by",
        "`ONDOT_URL` and `ONDOT_API_KEY`; the others need the database.",
        "Times are UTC. Commands that show something have `-o table|wide|json|jsonl|yaml|name`, most lists `-o csv`:",
        "[outputs](../guides/command-line.md#outputs). `-h` shows the help of any command.",
        "[Exit codes](errors.md#of-the-command-line). Completion: `ondot --install-completion`.",
        "",
    ]
    return "\n".join([*lines, *_command(root, "ondot")])


def _command(command: Any, path: str) -> Iterator[str]:
    if isinstance(command, TyperGroup):
        if path != "ondot":
            yield from (f"## {path}", "", _one_line(command.help), "")
        for name, found in command.commands.items():
            if not found.hidden:
                yield from _command(found, f"{path} {name}")
        return
    arguments = [_argument(parameter) for parameter in command.params if isinstance(parameter, TyperArgument)]
    level = "###" if path.count(" ") > 1 else "##"
    yield from (f"{level} {' '.join([path, *arguments])}", "", _one_line(command.help), "")
    options = [parameter for parameter in command.params if isinstance(parameter, TyperOption)]
    if shown := [_row(option) for option in options if not option.hidden and option.opts[0] not in EVERYWHERE]:
        yield from ("| option | |", "|---|---|", *shown, "")


def _argument(argument: Any) -> str:
    name = (argument.metavar or argument.name).strip("[]").upper()
    name += "…" if argument.nargs == -1 else ""
    return name if argument.required else f"[{name}]"


def _row(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in option.opts)
    value = "" if option.is_flag else f" {_value(option)}"
    ends = " Required." if option.required else f" Default: {_text(option.default)}." if _has_default(option) else ""
    text = _one_line(option.help).replace("|", r"\|")
    return f"| {names}{value} | {text}{ends} |"


def _value(option: Any) -> str:
    annotation = option.type_descriptor.annotation
    if option.metavar:
        return str(option.metavar).replace("|", r"\|")
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return r"\|".join(str(choice.value) for choice in annotation)
    return "N" if annotation is int else "TEXT"


def _text(value: object) -> str:
    return str(value.value if isinstance(value, Enum) else value)


def _has_default(option: Any) -> bool:
    return not option.is_flag and isinstance(option.default, int | str | Enum) and _text(option.default) != ""


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


DOCUMENTS: Final[dict[str, Callable[[], str]]] = {
    "state-machine.md": state_machine,
    "cli.md": commands,
    "sdk.md": reference,
}


def main() -> int:
    is_check = "--check" in sys.argv[1:]
    stale = []
    for name, write in DOCUMENTS.items():
        path, text = REFERENCE / name, write()
        if is_check and not (path.exists() and path.read_text() == text):
            stale.append(name)
        elif not is_check:
            path.write_text(text)
    if stale:
        print(f"{', '.join(stale)}: not what the code says. Run 'make format'.")  # noqa: T201
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main())
