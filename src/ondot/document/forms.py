"""Small bodies, read like every other: camelCase is taken too, and all faults are told at once, each with a pointer."""

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from ondot.document.errors import Written, came, faults_of, refuse
from ondot.document.json_text import snake_case
from ondot.model.errors import Fault, InvalidBody

Form = TypeVar("Form", bound=BaseModel)


def read_form(form: type[Form], raw: object, example: str) -> Form:
    """The body as its form; `example` is what a body may look like. Raises InvalidBody."""
    if not isinstance(raw, dict):
        message = f"The body must be a JSON object, {example}; {came(raw)} came."
        raise InvalidBody(message, faults=(Fault("", message),))
    try:
        return form.model_validate(snake_case(raw))
    except ValidationError as error:
        faults = [fault for _, fault in faults_of(error, form, Written(raw, "", {}))]
        raise refuse(faults, all_of_schedule=False) from None
