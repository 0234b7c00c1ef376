"""The SDK reference, from the sources: public names, signatures, types and docstrings, read without running them."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

from ondot.document.body import JobBody
from ondot.document.schedule_body import ScheduleBody
from ondot.sdk import app, arguments, context, decisions, handle, handler, options, runs, workflow
from ondot.sdk import workflow_handler as workflows
from ondot.sdk.transaction import attempt
from ondot.testing import opening, world

PARTS: Final[dict[str, list[tuple[ModuleType, str]]]] = {
    "The application": [(app, "Ondot"), (options, "JobOptions"), (options, "WorkflowOptions")],
    "Functions": [
        (handler, "Handler"),
        (handler, "BoundHandler"),
        (options, "EnqueueOptions"),
        (arguments, "Arguments"),
        (arguments, "ArgumentError"),
    ],
    "Handles": [
        (handle, "JobHandle"),
        (handle, "Handle"),
        (handle, "NotSucceeded"),
        (handle, "ResultGone"),
        (handle, "NotCommitted"),
    ],
    "In a function": [
        (context, "Context"),
        (decisions, "RetryIn"),
        (decisions, "RetryAt"),
        (decisions, "GiveUp"),
        (attempt, "Stale"),
    ],
    "Workflows": [
        (workflows, "WorkflowHandler"),
        (workflows, "BoundWorkflow"),
        (workflow, "Workflow"),
        (runs, "RunHandle"),
        (runs, "RunNotSucceeded"),
    ],
    "Tests": [(opening, "open_world"), (world, "World")],
}
HEAD: Final = """# The Python SDK

Written by `docs/generate.py` from the docstrings of `src/ondot/sdk/`; `make check` fails when they differ.

`from ondot import …` has what programs need, `from ondot.testing import open_world` what their tests need. How to use
it: [functions](../guides/functions.md), [workflows](../guides/workflows-in-python.md),
[transactions](../guides/transactions.md), [testing](../guides/testing.md).
"""
OF_THE_WORKER: Final = {"bind", "check_step", "recurring_body", "schedules", "fields", "types", "lines"}
"""Public names that are not for programs."""
MADE_BY_PROGRAMS: Final = {"Ondot", "RetryIn", "RetryAt", "GiveUp"}
"""Classes whose objects a program creates itself."""


def reference() -> str:
    lines = [HEAD]
    for title, members in PARTS.items():
        lines += [f"## {title}", ""]
        for module, name in members:
            lines += _of(module, name)
    return "\n".join(lines).rstrip() + "\n"


def _of(module: ModuleType, name: str) -> Iterator[str]:
    tree = ast.parse(Path(inspect.getsourcefile(getattr(module, name)) or "").read_text())
    node = next(node for node in tree.body if getattr(node, "name", None) == name)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from _function(node, node.name, "###")
        return
    assert isinstance(node, ast.ClassDef)
    bases = [ast.unparse(base) for base in node.bases if "Generic" not in ast.unparse(base)]
    kind = f" ({', '.join(bases)})" if bases and bases != ["Protocol"] else ""
    yield from (f"### {name}{kind if kind != ' (TypedDict)' else ''}", "", *_doc(node))
    initial = next((one for one in node.body if getattr(one, "name", "") == "__init__"), None)
    if "TypedDict" in kind or name == "WorkflowOptions":
        yield from _table([(field, kind, text or _described(field)) for field, kind, text in _fields(node)])
    else:
        attributes = [*_fields(node), *(_fields(initial) if isinstance(initial, ast.FunctionDef) else ())]
        attributes += [_property(one) for one in node.body if _is_property(one)]
        yield from _table([attribute for attribute in attributes if attribute[2]])
    for one in node.body:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and _is_shown(name, one):
            yield from _function(one, _called(name, one.name), "####")


def _is_shown(of: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    if node.name == "__init__":
        return of in MADE_BY_PROGRAMS
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    is_public = node.name == "__call__" or not (node.name.startswith("_") or node.name in OF_THE_WORKER)
    return is_public and bool(ast.get_docstring(node)) and decorators.isdisjoint({"overload", "property"})


def _called(of: str, name: str) -> str:
    return of if name == "__init__" else f"{of.lower()}(…)" if name == "__call__" else name


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str, level: str) -> Iterator[str]:
    given = ast.unparse(node.args).removeprefix("self, /, ").removeprefix("self, ").removeprefix("self")
    returned = ast.unparse(node.returns).strip("'") if node.returns else "Any"
    returns = "" if node.name == "__init__" or returned == "Any" else f" -> {returned}"
    signature = f"{name}({given}){returns}" if "(…)" not in name else f"{name.replace('…', given)}{returns}"
    is_async = isinstance(node, ast.AsyncFunctionDef)
    yield from (f"{level} `{'await ' if is_async else ''}{signature}`", "", *_doc(node))


def _doc(node: ast.AST) -> list[str]:
    text = inspect.cleandoc(ast.get_docstring(node) or "")  # type: ignore[arg-type]
    return [text, ""] if text else []


def _fields(node: ast.ClassDef | ast.FunctionDef) -> Iterator[tuple[str, str, str]]:
    """Name, type and docstring of the public attributes that are declared here."""
    for one, following in zip(node.body, [*node.body[1:], None], strict=True):
        target = one.target if isinstance(one, ast.AnnAssign) else None
        name = target.attr if isinstance(target, ast.Attribute) else target.id if isinstance(target, ast.Name) else "_"
        if isinstance(one, ast.AnnAssign) and not name.startswith("_") and name not in OF_THE_WORKER:
            says = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            text = str(following.value.value) if says else ""  # type: ignore[union-attr]
            kind = ast.unparse(one.annotation)
            yield name, "" if kind == "Final" else kind, " ".join(text.split())


def _described(option: str) -> str:
    """What the field of a job or of its schedule means, in the words of the API."""
    fields = {**ScheduleBody.model_fields, **JobBody.model_fields}
    return (fields[option].description or "") if option in fields else ""


def _is_property(node: ast.stmt) -> bool:
    decorators = {ast.unparse(one) for one in getattr(node, "decorator_list", ())}
    return isinstance(node, ast.FunctionDef) and "property" in decorators and not node.name.startswith("_")


def _property(node: ast.stmt) -> tuple[str, str, str]:
    assert isinstance(node, ast.FunctionDef)
    returns = ast.unparse(node.returns) if node.returns else ""
    return node.name, returns, " ".join((ast.get_docstring(node) or "").split())


def _table(rows: Iterator[tuple[str, str, str]] | list[tuple[str, str, str]]) -> Iterator[str]:
    shown = [(name, kind.replace("|", r"\|"), text.replace("|", r"\|")) for name, kind, text in rows]
    if shown:
        yield from ("| name | type | |", "|---|---|---|")
        yield from (f"| `{name}` | {f'`{kind}`' if kind else ''} | {text} |" for name, kind, text in shown)
        yield ""
