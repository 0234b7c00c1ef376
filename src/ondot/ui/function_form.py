"""The form of a function's arguments, made from their schema (D1): an input for each, and the payload that was sent.

An input that is left empty is left out, so that the function's default applies; text that is required may be empty.
What cannot be read as its type is sent as it was typed: the check by the schema says what is wrong, at the input.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from ondot.document.json_text import escaped
from ondot.model.errors import Fault
from ondot.words.function import Argument, describe_argument, list_arguments

PREFIX: Final = "arg."
"""Before the names of arguments: they must not be taken for fields of the form itself."""
OTHERS: Final = "others"
"""The input for arguments that are not declared, or for the whole payload if there is no schema."""
_INPUTS: Final = {"date": "date", "date-time": "datetime-local", "time": "time"}
_LONG: Final = frozenset({"array", "object", "json"})


@dataclass(frozen=True, slots=True)
class Input:
    """One input. `kind`: checkbox, select, json, or the type of an `<input>`. `value`: what it shows."""

    argument: Argument
    kind: str
    value: str
    choices: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        return f"{PREFIX}{self.argument.name}"

    @property
    def words(self) -> str:
        return describe_argument(self.argument)

    @property
    def placeholder(self) -> str:
        argument = self.argument
        if argument.has_default:
            return _shown(argument.default)
        return "" if argument.is_required else "none"


@dataclass(frozen=True, slots=True)
class FunctionForm:
    inputs: tuple[Input, ...]
    takes_others: bool
    """Any other argument may be given, as JSON; without a schema all are."""
    others: str = ""


def build_form(schema: Mapping[str, Any] | None, sent: Mapping[str, str] | None = None) -> FunctionForm:
    """The form of a schema; `sent`: with what was typed into it."""
    arguments = [] if schema is None else list_arguments(schema)
    takes_others = schema is None or schema.get("additionalProperties") is not False
    others = "" if sent is None else sent.get(OTHERS, "")
    return FunctionForm(tuple(_input(argument, sent) for argument in arguments), takes_others, others)


def read_payload(form: FunctionForm, sent: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, tuple[str, ...]]]:
    """The payload, and what is wrong with inputs that must be JSON."""
    payload: dict[str, Any] = {}
    faults: dict[str, tuple[str, ...]] = {}
    if form.takes_others and (text := sent.get(OTHERS, "").strip()):
        try:
            others = msgspec.json.decode(text)
            if not isinstance(others, dict):
                faults[OTHERS] = ('Write an object in JSON, such as {"region": "eu"}.',)
            else:
                payload |= others
        except (msgspec.DecodeError, RecursionError) as error:
            faults[OTHERS] = (f"This is not JSON: {error}.",)
    for one in form.inputs:
        text = sent.get(one.name, "")
        if one.kind == "checkbox":
            payload[one.argument.name] = text == "yes"
        elif text or (one.kind == "text" and one.argument.is_required and one.argument.kind == "string"):
            try:
                payload[one.argument.name] = _read(one, text)
            except (msgspec.DecodeError, RecursionError) as error:
                faults[one.name] = (f"This is not JSON: {error}.",)
    return payload, faults


def place_faults(form: FunctionForm, faults: Sequence[Fault]) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """The messages by input, and those of no input."""
    placed: dict[str, tuple[str, ...]] = {}
    rest: list[str] = []
    names = {f"/payload/{escaped(one.argument.name)}": one.name for one in form.inputs}
    for fault in faults:
        at = "/".join(fault.pointer.split("/")[:3])
        name = names.get(at) or (OTHERS if form.takes_others and at.startswith("/payload") else None)
        if name is None:
            rest.append(fault.message)
        else:
            placed[name] = (*placed.get(name, ()), fault.message)
    return placed, rest


def _input(argument: Argument, sent: Mapping[str, str] | None) -> Input:
    typed = None if sent is None else sent.get(f"{PREFIX}{argument.name}", "")
    if argument.choices:
        choices = tuple((_json(choice), _shown(choice)) for choice in argument.choices)
        default = _json(argument.default) if argument.has_default and argument.default is not None else ""
        empty = (
            ()
            if argument.is_required and not argument.is_nullable
            else (("", "default" if argument.has_default else "none"),)
        )
        return Input(argument, "select", default if typed is None else typed, (*empty, *choices))
    if argument.kind == "boolean":
        if argument.is_nullable:
            choices = (("", "none"), ("true", "true"), ("false", "false"))
            return Input(argument, "select", "" if typed is None else typed, choices)
        is_on = argument.default is True if typed is None else typed == "yes"
        return Input(argument, "checkbox", "yes" if is_on else "")
    if argument.kind in _LONG:
        shown = _shown(argument.default) if argument.has_default and argument.default is not None else ""
        return Input(argument, "json", shown if typed is None else typed)
    if argument.kind in {"integer", "number"}:
        return Input(argument, "number", typed or "")
    return Input(argument, _INPUTS.get(argument.format or "", "text"), typed or "")


def _read(one: Input, text: str) -> Any:
    match one.kind:
        case "select" | "json":
            return msgspec.json.decode(text)
        case "number":
            try:
                return msgspec.json.decode(text)
            except msgspec.DecodeError:
                return text
        case "datetime-local":
            # Browsers leave out seconds that are 0, and the zone: the label says UTC.
            return (
                f"{text}{':00' if text.count(':') == 1 else ''}Z" if text[-1:].isdigit() and "+" not in text else text
            )
        case "time":
            return f"{text}:00" if text.count(":") == 1 else text
        case _:
            return text


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _shown(value: object) -> str:
    return value if isinstance(value, str) else _json(value)
