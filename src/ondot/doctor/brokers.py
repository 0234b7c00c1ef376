"""`ondot doctor` tests the connections to brokers and servers (E3): from this machine, and it sends nothing."""

import asyncio
from typing import TYPE_CHECKING, Final

from ondot.doctor.checks import Finding

if TYPE_CHECKING:
    from ondot.store.database import Database

MOST: Final = 50
SHOWN: Final = 5
AT_ONCE: Final = 10


async def examine_brokers(database: "Database") -> list[Finding]:
    """None if there are no connections."""
    from ondot.flow.connections.manage import find_error
    from ondot.flow.outgoing import Outgoing
    from ondot.flow.vault import Vault
    from ondot.kms import open_kms
    from ondot.model.errors import NoSecretKey
    from ondot.store.connections import list_all_connections
    from ondot.targets.checks import ConnectionChecker

    async with database.connection() as connection:
        rows = await list_all_connections(connection, MOST)
    vault = Vault(database, open_kms(database.settings.secret_key))
    checker = ConnectionChecker(Outgoing(database).reach_of)
    room = asyncio.Semaphore(AT_ONCE)
    broken: list[str] = []

    async def test(number: int) -> None:
        tenant_no, row = rows[number]
        async with room:
            try:
                error = await find_error(vault, tenant_no, row, checker.check)
            except NoSecretKey as missing:
                error = missing.message
        if error is not None:
            broken.append(f"{row.name}: {error}")

    await asyncio.gather(*(test(number) for number in range(len(rows))))
    if not rows:
        return []
    if not broken:
        count = "1 connection works" if len(rows) == 1 else f"{len(rows)} connections work"
        return [Finding("brokers", "ok", f"{count}, tested from here.")]
    more = f" And {len(broken) - SHOWN} more." if len(broken) > SHOWN else ""
    message = f"Connections that do not work from here: {' '.join(sorted(broken)[:SHOWN])}{more}"
    return [Finding("brokers", "warning", message, "Correct them with `ondot connection add`, or start the brokers.")]
