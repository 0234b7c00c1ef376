"""Alerts as people write them (O4). What `when` accepts follows from the table of kinds."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, create_model

from ondot.document.fields import LARGEST_INTEGER, Body, Duration, Instant, PlainText, PoolName, check_visible
from ondot.document.json_text import snake_case
from ondot.document.reading import read_form
from ondot.document.rules import MAX_LABEL_NAME, MAX_LABEL_VALUE, MAX_LABELS
from ondot.model.alerts.kinds import EVENT_S, KINDS, LONGEST_S, Form, Kind, Threshold
from ondot.model.alerts.scope import ALL_TENANTS, Scope
from ondot.model.duration import as_written
from ondot.model.errors import Fault, InvalidBody

LEAST_REPEAT_S: Final = 60.0
DEFAULT_REPEAT_S: Final = 4 * 3600.0
MOST_CHANNELS: Final = 10
MOST_PATTERNS: Final = 100
MOST_VALUES: Final = 50
LARGEST_COUNT: Final = 1_000_000
EXAMPLE: Final = (
    'for example {"name": "bi", "when": {"failing": {"in_a_row": 3}}, "scope": {"labels": {"team": ["bi"]}},'
    ' "notify": ["ops"]}'
)


def _at_most(longest_s: float, text: str, least_s: float = 0.0) -> AfterValidator:
    def check(seconds: float) -> float:
        if not least_s <= seconds <= longest_s:
            raise ValueError(text)
        return seconds

    return AfterValidator(check)


def _type_of(threshold: Threshold) -> Any:
    match threshold.form:
        case Form.COUNT:
            most = LARGEST_COUNT if threshold.name != "in_a_row" else 50
            return Annotated[int, Field(ge=int(threshold.least), le=min(most, LARGEST_INTEGER))]
        case Form.DURATION:
            text = f'a duration of {threshold.least:g} seconds to 30 days, for example "{threshold.example}"'
            return Annotated[Duration, _at_most(LONGEST_S, text, threshold.least)]
        case Form.POOL:
            return PoolName
        case Form.FLAG:
            return bool


def _body_of(kind: Kind) -> type[Body]:
    fields: dict[str, Any] = {
        threshold.name: (
            _type_of(threshold),
            Field(
                default=... if threshold.default is None else threshold.default,
                description=threshold.says,
                examples=[threshold.example],
            ),
        )
        for threshold in kind.thresholds
    }
    name = "".join(part.capitalize() for part in kind.name.split("_"))
    return create_model(f"When{name}", __base__=Body, __doc__=kind.says, **fields)


WHEN_BODIES: Final[Mapping[str, type[Body]]] = {kind.name: _body_of(kind) for kind in KINDS.values()}


def _when_model() -> type[Body]:
    fields: dict[str, Any] = {
        name: (body | None, Field(default=None, description=KINDS[name].says, examples=[KINDS[name].example[name]]))
        for name, body in WHEN_BODIES.items()
    }
    return create_model("WhenBody", __base__=Body, __doc__="Exactly one kind, with its thresholds.", **fields)


WhenBody: Final = _when_model()


def _values(written: object) -> object:
    """One value may be written without its list."""
    return [written] if isinstance(written, str) else written


LabelValues = Annotated[
    list[Annotated[str, Field(max_length=MAX_LABEL_VALUE), AfterValidator(check_visible)]],
    Field(min_length=1, max_length=MOST_VALUES),
    BeforeValidator(_values),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]


class ScopeBody(Body):
    """Which jobs an alert watches. All that is given must match; empty: all of the tenant."""

    labels: Annotated[
        dict[
            Annotated[str, Field(min_length=1, max_length=MAX_LABEL_NAME), AfterValidator(check_visible)], LabelValues
        ],
        Field(max_length=MAX_LABELS),
    ] = Field(default_factory=dict, description="Each label has one of its values.", examples=[{"team": ["bi"]}])
    jobs: Annotated[list[PlainText], Field(max_length=MOST_PATTERNS)] = Field(
        default_factory=list, description="Names, names with * and ?, or ids.", examples=[["nightly-*"]]
    )
    pools: Annotated[list[PoolName], Field(max_length=MOST_PATTERNS)] = Field(
        default_factory=list, description="Pools of the jobs.", examples=[["batch"]]
    )
    tenant: Literal["all"] | None = Field(
        default=None, description='`"all"`: the jobs of all tenants. Only owners may use it.'
    )


class AlertBody(Body):
    """An alert: what it watches, when it reports, and to which channels."""

    name: PlainText = Field(description="Each alert of a tenant has its own.", examples=["bi"])
    when: WhenBody = Field(  # type: ignore[valid-type]
        description="Exactly one kind, with its thresholds.", examples=[{"failing": {"in_a_row": 3}}]
    )
    scope: ScopeBody = Field(default_factory=ScopeBody, description="Which jobs it watches. Default: all.")
    for_: Annotated[Duration, _at_most(86_400.0, 'a duration of at most a day, for example "2m"')] = Field(
        default=0.0, alias="for", description="How long it must hold before it is an incident.", examples=["2m"]
    )
    repeat: (
        Annotated[
            Duration,
            _at_most(LONGEST_S, 'a duration of a minute to 30 days, for example "4h", or null', LEAST_REPEAT_S),
        ]
        | None
    ) = Field(
        default=DEFAULT_REPEAT_S,
        description="How often it reminds while it holds. null: never. Default: 4 hours.",
        examples=["4h"],
    )
    notify: Annotated[list[PlainText], Field(max_length=MOST_CHANNELS)] = Field(
        default_factory=list, description="The names of channels. None: incidents are only shown.", examples=[["ops"]]
    )
    muted_until: Instant | None = Field(
        default=None, description="No opening and no reminder is sent before. null: not muted."
    )

    @property
    def kind(self) -> str:
        return next(iter(self.thresholds))

    @property
    def thresholds(self) -> dict[str, Any]:
        """`when` with seconds and defaults, as it is stored."""
        when: Any = self.when
        return {name: body.model_dump() for name in WHEN_BODIES if (body := getattr(when, name)) is not None}

    @property
    def covers(self) -> Scope:
        scope = self.scope
        return Scope(
            {name: tuple(dict.fromkeys(values)) for name, values in scope.labels.items()},
            tuple(dict.fromkeys(scope.jobs)),
            tuple(dict.fromkeys(scope.pools)),
            scope.tenant,
        )


class MuteBody(Body):
    """For how long an alert is muted."""

    for_: Annotated[Duration, _at_most(LONGEST_S, 'a duration of at most 30 days, for example "2h"')] | None = Field(
        default=None, alias="for", description="From now on; 0 ends the mute.", examples=["2h"]
    )
    until: Instant | None = Field(default=None, description="Instead of `for`: until an instant.")


class NoteBody(Body):
    """A note on an incident, for those who look at it later."""

    note: Annotated[str, Field(max_length=2_000)] | None = Field(
        default=None, description="What you found or did.", examples=["the vendor is down, ticket 4711"]
    )


def read_alert(raw: object) -> AlertBody:
    """Raises InvalidBody with all faults."""
    return _check(read_form(AlertBody, raw, EXAMPLE))


def read_alert_patch(raw: object, base: dict[str, Any]) -> AlertBody:
    """The alert after a patch: each field that the patch has replaces the whole field, null resets it."""
    if not isinstance(raw, dict):
        return read_alert(raw)
    fields = snake_case(raw)
    assert isinstance(fields, dict)
    kept = {name: value for name, value in base.items() if name not in fields}
    given = {name: value for name, value in fields.items() if value is not None or name == "repeat"}
    return read_alert({**kept, **given})


def alert_base(
    *, name: str, when: dict[str, Any], scope: Scope, for_s: float, repeat_s: float | None, notify: list[str]
) -> dict[str, Any]:
    """An alert in the form in which it is written."""
    return {
        "name": name,
        "when": {kind: {field: _written(value) for field, value in of.items()} for kind, of in when.items()},
        "scope": scope.as_json(),
        "for": as_written(for_s),
        "repeat": None if repeat_s is None else as_written(repeat_s),
        "notify": notify,
    }


def _written(value: Any) -> Any:
    return as_written(value) if isinstance(value, float) else value


def muted_until(body: MuteBody, now: datetime) -> datetime | None:
    """None: not muted any more."""
    from datetime import timedelta

    if body.until is not None:
        return body.until if body.until > now else None
    seconds = body.for_ or 0.0
    return now + timedelta(seconds=seconds) if seconds else None


def _check(body: AlertBody) -> AlertBody:
    given = body.thresholds
    if len(given) != 1:
        names = " and ".join(f"`{name}`" for name in given) or "none"
        pointer = f"/when/{list(given)[1]}" if given else "/when"
        raise _invalid(pointer, f"`when` takes exactly one of {', '.join(KINDS)}, got {names}.")
    kind = KINDS[body.kind]
    if kind.is_event and body.for_ >= EVENT_S:
        raise _invalid(
            "/for", f"`{kind.name}` happens at an instant and counts for {EVENT_S / 60:g} minutes: `for` must be less."
        )
    if body.kind == "workers" and body.scope.model_dump(exclude_defaults=True):
        raise _invalid("/scope", "`workers` names its pool in `when`; leave out `scope`.")
    return body


def _invalid(pointer: str, message: str) -> InvalidBody:
    return InvalidBody(message, faults=(Fault(pointer, message),))


__all__ = [
    "ALL_TENANTS",
    "EXAMPLE",
    "AlertBody",
    "MuteBody",
    "NoteBody",
    "ScopeBody",
    "alert_base",
    "muted_until",
    "read_alert",
    "read_alert_patch",
]
