"""Writes docs/reference/state-machine.md from the transition table, or checks that it is as written (`--check`)."""

import sys
from pathlib import Path

from ondot.model.execution import TERMINAL, TRANSITIONS, Outcome, State

TARGET = Path(__file__).parent / "reference" / "state-machine.md"


def document() -> str:
    lines = [
        "# The state machine of executions",
        "",
        "Written by `docs/state_machine.py` from `src/ondot/model/execution.py`; `make check` fails when they differ.",
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
        target = transition.target.value if transition.target else "(gone, without a trace)"
        lines.append(f"| {transition.name} | {left} | {target} | {transition.why} |")
    lines += [
        "",
        f"Terminal, and never left: {', '.join(state.value for state in State if state in TERMINAL)}.",
        f"An attempt ends {', '.join(outcome.value for outcome in Outcome)}.",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    if "--check" in sys.argv[1:]:
        if TARGET.exists() and TARGET.read_text() == document():
            return 0
        print(f"{TARGET.name} is not what the transition table says: run 'make format'.")  # noqa: T201
        return 1
    TARGET.write_text(document())
    return 0


if __name__ == "__main__":
    sys.exit(main())
