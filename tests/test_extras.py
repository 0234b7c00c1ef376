"""Optional packages that are missing."""

import pytest

from ondot.extras import needs_extra
from ondot.model.errors import Misconfigured
from tests.proves import proves


@proves("C4", "E3")
def test_a_missing_package_is_named_with_the_command_that_installs_it() -> None:
    message = r"The transport redis needs .*: pip install 'ondot\[redis\]'"
    with pytest.raises(Misconfigured, match=message), needs_extra("redis", "The transport redis"):
        import a_package_that_nobody_has  # type: ignore[import-not-found]  # noqa: F401
