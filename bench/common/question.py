"""What every benchmark shares: its two flags, and how it prints its result.

A benchmark is a module. Its docstring states what is measured, with which durability and batch sizes, and what counts.
It returns a dict: `question` first, `per_s` for a rate, `ratio` if there is a reference in the same run, the rest by
name. With `--json` it is printed as one object on the last line; else as a readable block.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

Result = dict[str, Any]


def ask(question: Callable[..., Result], *, full: str, quick: str, parts: Sequence[str] = ()) -> None:
    """Run a benchmark as a command; `question` gets whether --quick is set. `full`, `quick`: the extent of each run.

    `parts`: it has several, of which some may be named; then `question` gets their names, too.
    """
    document = sys.modules["__main__"].__doc__
    parser = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{quick} instead of {full}")
    parser.add_argument("--json", action="store_true", help="the result as one JSON object on the last line")
    if parts:
        parser.add_argument("parts", nargs="*", help=f"only these parts: {', '.join(parts)}")
    arguments = parser.parse_args()
    if parts:
        if unknown := set(arguments.parts) - set(parts):
            parser.error(f"unknown part: {', '.join(sorted(unknown))}. Use: {', '.join(parts)}")
        result = question(arguments.quick, arguments.parts or list(parts))
    else:
        result = question(arguments.quick)
    if arguments.json:
        print(json.dumps(result), flush=True)
    else:
        print(f"{result['question']}{' (quick)' if arguments.quick else ''}")
        for name, value in result.items():
            if name != "question":
                print(f"  {name:34} {as_text(value)}")


def as_text(value: object) -> str:
    match value:
        case bool() | str():
            return str(value)
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.4g}"
        case dict():
            return ", ".join(f"{name} {as_text(each)}" for name, each in value.items())
        case list() | tuple():
            return ", ".join(as_text(each) for each in value)
        case _:
            return str(value)


def say(message: str) -> None:
    """Print progress to stderr: the last line of stdout is the result."""
    print(message, file=sys.stderr, flush=True)


def quantile(sorted_values: list[float], share: float) -> float:
    """The value below which this share of the values lies (nearest rank)."""
    return sorted_values[min(int(share * len(sorted_values)), len(sorted_values) - 1)]
