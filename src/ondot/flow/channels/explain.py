"""Why a delivery is where it is (O4, E17): its attempts, and when it is sent again."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, assert_never
from uuid import UUID

from ondot.model.channel import GIVE_UP_AFTER_S, DeliveryState
from ondot.model.errors import NotFound
from ondot.model.execution import State
from ondot.model.ids import INSTALLATION, TenantNo
from ondot.store.channels import DeliveryRow, get_delivery
from ondot.store.database import Database
from ondot.store.executions import AttemptRow, get_execution, list_attempts

ATTEMPTS: Final = 50
_NOT_TAKEN: Final = "No scheduler has taken it yet: check that one runs, with `ondot fleet`."


@dataclass(frozen=True, slots=True)
class ExplainedDelivery:
    delivery: DeliveryRow
    attempts: Sequence[AttemptRow]
    next_attempt_at: datetime | None
    words: str


async def explain_delivery(database: Database, tenant_no: TenantNo, channel: str, id_: UUID) -> ExplainedDelivery:
    """Raises NotFound. The execution is the installation's, and is read only for a delivery of the tenant."""
    async with database.connection() as connection:
        delivery = await get_delivery(connection, tenant_no, id_)
        if delivery is None or delivery.channel != channel:
            raise NotFound(f"There is no delivery {id_} of the channel {channel!r}.")
        execution = await get_execution(connection, INSTALLATION, delivery.id)
        attempts = await list_attempts(connection, INSTALLATION, delivery.id)
    is_waiting = execution is not None and execution.state in {State.PENDING, State.RETRYING}
    next_at = execution.ready_at if is_waiting and execution is not None else None
    return ExplainedDelivery(delivery, attempts[-ATTEMPTS:], next_at, _explain(delivery, next_at))


def _explain(delivery: DeliveryRow, next_at: datetime | None) -> str:
    match delivery.state:
        case DeliveryState.QUEUED:
            return _NOT_TAKEN if not delivery.joined else "It collects further messages until its minute is over."
        case DeliveryState.SENDING:
            return "It is being sent."
        case DeliveryState.RETRYING:
            again = "soon" if next_at is None else f"at {next_at.isoformat(timespec='seconds')}"
            hours = GIVE_UP_AFTER_S / 3600
            return f"{delivery.error} It is sent again {again}, for at most {hours:g} hours in all."
        case DeliveryState.DELIVERED:
            return "The receiver has accepted it."
        case DeliveryState.FAILED:
            return f"It was given up: {delivery.error} Fix the channel, and try it with a test message."
        case DeliveryState.DROPPED:
            return f"It was not sent: {delivery.error}"
        case _:
            assert_never(delivery.state)
