"""What every benchmark shares: its two flags, and how its result is told.

A benchmark is a module whose docstring says what is measured, with which durability and batch sizes, and what counts.
It gives a dict: `question` first, `per_s` where it is a rate, `ratio` where there is a reference in the same run, the
rest by name. With `--json` that is one object on the last line; else a readable block.
"""

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

Result = dict[str, Any]


def ask(question: Callable[[bool], Result], *, full: str, quick: str) -> None:
    """Run a benchmark as a command: `question` gets whether a quick look will do. `full`, `quick`: what each takes."""
    document = sys.modules["__main__"].__doc__
    parser = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{quick} instead of {full}")
    parser.add_argument("--json", action="store_true", help="the result as one JSON object on the last line")
    arguments = parser.parse_args()
    result = question(arguments.quick)
    if arguments.json:
        print(json.dumps(result), flush=True)
    else:
        print(f"{result['question']}{' (quick)' if arguments.quick else ''}")
        for name, value in result.items():
            if name != "question":
                print(f"  {name:34} {told(value)}")


def told(value: object) -> str:
    match value:
        case bool() | str():
            return str(value)
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.4g}"
        case dict():
            return ", ".join(f"{name} {told(each)}" for name, each in value.items())
        case list() | tuple():
            return ", ".join(told(each) for each in value)
        case _:
            return str(value)


def say(message: str) -> None:
    """Of what a long run does, on stderr: the last line of stdout is the result's."""
    print(message, file=sys.stderr, flush=True)


def quantile(sorted_values: list[float], share: float) -> float:
    """Of sorted values the one below which this share of them lies (nearest rank)."""
    return sorted_values[min(int(share * len(sorted_values)), len(sorted_values) - 1)]
