"""How long from `ondot up` to the first served request: on an empty home, and on the same home again."""

import argparse
import json

from started import place, start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one run instead of three")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    first: list[float] = []
    again: list[float] = []
    for _ in range(1 if arguments.quick else 3):
        with place() as home:
            for figures in (first, again):
                started = start(home)
                figures.append(started.took_s)
                started.stop()
    result = {"question": "start", "first_s": sorted(first)[len(first) // 2], "again_s": sorted(again)[len(again) // 2]}
    if arguments.json:
        print(json.dumps(result))
    else:
        print(f"start: {result['first_s']:.2f} s on an empty home, {result['again_s']:.2f} s on the same home again")


if __name__ == "__main__":
    main()
