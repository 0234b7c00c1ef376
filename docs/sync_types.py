"""Writes src/ondot/sdk/sync_types.pyi, which is what type checkers see of `.sync`; or checks that it is as written.

At runtime `.sync` is a proxy that calls the coroutine methods and blocks. This describes the same methods without
`async`, from the sources of the SDK, so that neither can get ahead of the other (D3).
"""

import ast
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SDK: Final = Path(__file__).parents[1] / "src/ondot/sdk"
WRITTEN: Final = SDK / "sync_types.pyi"

HEADER: Final = '''"""What `.sync` has, for type checkers. Written by `docs/sync_types.py`."""

# ruff: noqa: A002

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, Literal, Unpack
from uuid import UUID

from typing_extensions import ParamSpec, TypeVar

from ondot.sdk.client import Id, Version
from ondot.sdk.context import Context
from ondot.sdk.arguments import Arguments
from ondot.sdk.options import Duration, EnqueueOptions
from ondot.sdk.requests import Json

P = ParamSpec("P")
R = TypeVar("R")
'''

BLOCKING: Final = {
    "AsyncIterator": "Iterator",
    "Handle": "SyncHandle",
    "RunHandle": "SyncRunHandle",
    "BoundHandler": "SyncBoundHandler",
    "BoundWorkflow": "SyncBoundWorkflow",
}


@dataclass(frozen=True, slots=True)
class Described:
    """A class with a `.sync`. `methods`: those to describe; None: all that are public."""

    file: str
    name: str
    bases: str
    attributes: tuple[str, ...] = ()
    methods: tuple[str, ...] | None = None


ALL: Final = (
    Described("handle.py", "JobHandle", "", ("id: str", "job: Mapping[str, Any]")),
    Described("handle.py", "Handle", "(SyncJobHandle, Generic[R])"),
    Described("runs.py", "RunHandle", "(SyncJobHandle)"),
    Described(
        "handler.py",
        "Handler",
        "(Generic[P, R])",
        ("name: str",),
        ("enqueue", "enqueue_many", "args", "options", "handle"),
    ),
    Described("handler.py", "BoundHandler", "(Generic[P, R])", (), ("enqueue", "enqueue_many")),
    Described("workflow_handler.py", "WorkflowHandler", "(Generic[P])", ("name: str",), ("enqueue", "options")),
    Described("workflow_handler.py", "BoundWorkflow", "(Generic[P])", (), ("enqueue",)),
    Described("client.py", "Client", "", ("def close(self) -> None: ...",)),
)


def written() -> str:
    text = HEADER + "\n".join(_class(described) for described in ALL)
    for command in (["check", "--quiet", "--fix", "--exit-zero"], ["format", "--quiet"]):
        ran = subprocess.run(  # noqa: S603 - ruff of this environment
            [str(Path(sys.executable).parent / "ruff"), *command, "--stdin-filename", str(WRITTEN), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
        text = ran.stdout
    return text


def _class(described: Described) -> str:
    source = ast.parse((SDK / described.file).read_text())
    [found] = [node for node in source.body if isinstance(node, ast.ClassDef) and node.name == described.name]
    methods = [node for node in found.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lines = [f"class Sync{described.name}{described.bases}:", *(f"    {line}" for line in described.attributes)]
    for method in methods:
        wanted = not method.name.startswith("_") if described.methods is None else method.name in described.methods
        if wanted and not method.decorator_list:
            lines.append(f"    {_method(method)}")
    return "\n".join([*lines, "" if len(lines) > 1 else "    ...", ""])


def _method(method: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    arguments = method.args
    unset = ast.Constant(...)
    arguments.defaults = [unset for _ in arguments.defaults]
    arguments.kw_defaults = [default and unset for default in arguments.kw_defaults]
    assert method.returns is not None
    returns = ast.unparse(method.returns).strip("'\"")
    for name, blocking in BLOCKING.items():
        returns = re.sub(rf"\b{name}\b", blocking, returns)
    return f"def {method.name}({ast.unparse(arguments)}) -> {returns}: ..."


def main() -> None:
    text = written()
    if "--check" not in sys.argv:
        WRITTEN.write_text(text)
    elif not WRITTEN.exists() or WRITTEN.read_text() != text:
        raise SystemExit(f"{WRITTEN.name} differs from the SDK: run 'make format'.")


if __name__ == "__main__":
    main()
