"""Which requirement a test proves.

`@proves("S4")` puts a pytest marker on the test, so that coverage of the requirements can be listed from
the tests themselves (`pytest -m proves`). An invalid code is rejected when the test is collected.
"""

import re
from typing import Final

import pytest

CODE: Final = re.compile(r"[SEWCTOND]\d+|[PL]\d+")


def proves(*requirements: str) -> pytest.MarkDecorator:
    if not requirements:
        raise ValueError('Name at least one requirement, for example @proves("S4").')
    for requirement in requirements:
        if not CODE.fullmatch(requirement):
            raise ValueError(
                f"{requirement!r} is not a requirement. Use a letter of the list and a number, for example S4."
            )
    return pytest.mark.proves(*requirements)
