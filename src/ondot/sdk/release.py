"""The release of an app that gives none: a short hash of what its code declares.

It covers functions, workflows, their options and their schedules, not the code inside functions. So the same
declarations are the same release on every machine, and going back to older declarations is going back to that release.
"""

import hashlib
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from ondot.sdk.app import Ondot

LENGTH: Final = 12


def compute_release(app: "Ondot") -> str:
    functions = {
        name: [
            handler.fields,
            handler.timing,
            handler.pause_after_failures,
            handler.key,
            [parameter.name for parameter in handler.parameters.own],
        ]
        for name, handler in app.handlers.items()
    }
    workflows = {name: [handler.fields, handler.target] for name, handler in app.workflows.items()}
    declared = msgspec.json.encode([functions, workflows, app.schedules()], order="sorted")
    return hashlib.sha256(declared).hexdigest()[:LENGTH]
