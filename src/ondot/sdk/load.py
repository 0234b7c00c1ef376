"""Import the app that a worker runs, by its name on the command line: `MODULE:APP`."""

import importlib
import sys
import traceback
from pathlib import Path

from ondot.model.app_release import MAX_APP
from ondot.model.errors import Misconfigured
from ondot.sdk.app import Ondot


def load_app(reference: str) -> Ondot:
    """Import `module:app`, with the current directory on the path, as Python itself would have it. An app without a
    name gets that of the module."""
    module_name, colon, attribute = reference.partition(":")
    if not module_name or not colon or not attribute:
        raise Misconfigured(f"{reference!r} does not name an app: write MODULE:APP, for example tasks:app.")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise Misconfigured(
            f"There is no module {error.name!r}: start the worker in the directory that holds it, or install it."
        ) from error
    except Exception as error:
        raise Misconfigured(f"The module {module_name} cannot be imported:\n{_own_traceback(error)}") from error
    try:
        found = getattr(module, attribute)
    except AttributeError as error:
        raise Misconfigured(f"The module {module_name} has no {attribute!r}: write MODULE:APP.") from error
    if not isinstance(found, Ondot):
        raise Misconfigured(f"{reference} is a {type(found).__name__}, not an Ondot app: write `app = Ondot()`.")
    if found.name is None:
        found.name = module_name[-MAX_APP:]
    return found


def _own_traceback(error: Exception) -> str:
    """Only the user's own frames, without those of the import machinery."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    lines = traceback.format_list(frames[1:]) + traceback.format_exception_only(error)
    return "".join(lines).rstrip()
