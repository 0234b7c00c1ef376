"""The Python of the guides runs: each guide's snippets are files of one directory, and pytest runs its tests (D6, O7).

A `python` block belongs to the file that was named last in the text before it, such as `shop.py` or `shop/tasks.py`;
blocks of one file are joined in their order. A guide that has a `test_….py` among its files is run here, as its reader
would: by pytest, in a process of its own, with worlds on the session's PostgreSQL. A block that starts with `# before`
shows what a reader moves away from. It must compile, and is not run.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.proves import proves
from tests.servers import Server
from tests.testing.test_plugin import run_pytest

ROOT: Final = Path(__file__).parents[2]
BLOCK: Final = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
NAMED: Final = re.compile(r"`((?:\w+/)*\w+\.py)`")
BEFORE: Final = "# before"


def files_of(page: Path) -> dict[str, str]:
    """The snippets of a guide by the file that each belongs to."""
    text = page.read_text()
    files: dict[str, str] = {}
    for block in BLOCK.finditer(text):
        body = block[1]
        if body.startswith(BEFORE):
            continue
        named = NAMED.findall(BLOCK.sub("", text[: block.start()]))
        if named:
            files[named[-1]] = f"{files[named[-1]]}\n\n{body}" if named[-1] in files else body
    return files


def has_tests(page: Path) -> bool:
    return any(Path(name).name.startswith("test_") for name in files_of(page))


PAGES: Final = sorted((ROOT / "docs/guides").glob("*.md"))
TESTED: Final = [page for page in PAGES if has_tests(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_python_block_compiles(page: Path) -> None:
    for number, body in enumerate(BLOCK.findall(page.read_text()), 1):
        flags = 0x2000  # PyCF_ALLOW_TOP_LEVEL_AWAIT: a snippet may show a single await
        compile(body, f"{page.name}, python block {number}", "exec", flags=flags)


@proves("D6")
@pytest.mark.parametrize("page", TESTED, ids=lambda page: page.stem)
def test_the_snippets_of_a_guide_pass_their_own_tests(page: Path, tmp_path: Path, server: Server) -> None:
    files = files_of(page)
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    modules = [name.removesuffix(".py").replace("/", ".") for name in files]
    # Also files that no test imports: a snippet that cannot be imported is wrong.
    imported = subprocess.run(
        [sys.executable, "-c", "\n".join(f"import {module}" for module in modules)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert imported.returncode == 0, imported.stderr
    result = run_pytest(tmp_path, url=server.url)
    assert result.returncode == 0, result.stdout + result.stderr
