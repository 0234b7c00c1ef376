"""The audit log is tamper-evident (T6): every change that is made past ondot shows, and names the entry."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from ondot.flow.audit_seal import ENTRIES_A_PASS, LOGGED_A_PASS, LOGGED_EVERY_S, Sealer
from ondot.flow.audit_verify import Verdict, verify_audit
from ondot.model.audit_chain import Seal, SealKey, make_seal
from ondot.model.ids import DEFAULT_TENANT, TenantNo
from ondot.store.audit import By, record, record_all
from ondot.store.audit_seals import insert_seals, list_seals, read_entries
from ondot.store.connection import Connection
from tests.proves import proves
from tests.world import World

KEY = SealKey(b"a key that is not in the database")
OTHER = SealKey(b"another key that is not in it, either")
OTHER_TENANT = TenantNo(2)
BY = By("ann", "why", UUID(int=7), UUID(int=8), "192.0.2.7", "req-1", TenantNo(1))

Tamper = Callable[[Connection, list[UUID]], Awaitable[object]]


async def write(world: World, count: int = 1, tenant_no: TenantNo = DEFAULT_TENANT) -> None:
    """Entries of one transaction."""
    async with world.database.transaction() as connection:
        for number in range(count):
            await record(
                connection,
                tenant_no,
                BY,
                "job.update",
                UUID(int=number),
                {"number": number},
                before={"timeout_s": 1},
                after={"timeout_s": 2},
            )


async def seal(world: World, key: SealKey | None = KEY) -> int:
    """Seal until nothing waits; returns how many passes had something to do."""
    sealer, passes = Sealer(world.database, key), 0
    while await sealer.one_pass():
        passes += 1
    return passes


async def verify(
    world: World, keys: Sequence[SealKey] = (KEY,), tenant_no: TenantNo = DEFAULT_TENANT, **how: Any
) -> Verdict:
    return await verify_audit(world.database, tenant_no, keys, **how)


async def ids_of(world: World, tenant_no: TenantNo = DEFAULT_TENANT) -> list[UUID]:
    """In the order of the chain."""
    rows = await world.fetch("SELECT ids FROM ondot.audit_seal WHERE tenant_no = $1 ORDER BY seq", tenant_no)
    return [id_ for row in rows for id_ in row["ids"]]


async def sealed_log(world: World) -> list[UUID]:
    """Nine entries under three seals; another tenant has some too."""
    for _ in range(3):
        await write(world, 3)
        await write(world, 1, OTHER_TENANT)
        await seal(world)
        await world.advance(1)
    verdict = await verify(world)
    assert (verdict.is_intact, verdict.entries, verdict.seals, verdict.signed) == (True, 9, 3, 3)
    return await ids_of(world)


def change(column: str, value: str) -> Tamper:
    return lambda connection, ids: connection.execute(
        f"UPDATE ondot.audit SET {column} = {value} WHERE id = $1", ids[4]
    )


CHANGES = {
    "tenant_no": "2",
    "actor": "'eve'",
    "action": "'job.updatf'",
    "subject": "gen_random_uuid()",
    "detail": """'{"number": 99, "reason": "why"}'""",
    "key_id": "NULL",
    "user_id": "NULL",
    "address": "'192.0.2.8'",
    "request_id": "''",
    "home_tenant_no": "NULL",
    "before": """'{"timeout_s": 2}'""",
    "after": "NULL",
}


@proves("T6")
async def test_every_column_of_an_entry_is_covered_by_its_seal(world: World) -> None:
    columns = await world.fetch(
        "SELECT attname::text AS name FROM pg_attribute"
        " WHERE attrelid = 'ondot.audit'::regclass AND attnum > 0 AND NOT attisdropped"
    )
    assert {row["name"] for row in columns} == {"id", *CHANGES}
    ids = await sealed_log(world)
    for column, value in CHANGES.items():
        async with world.database.connection() as connection:
            transaction = connection.transaction()
            await transaction.start()
            before = (await read_entries(connection, [ids[4]]))[ids[4]].digest
            await change(column, value)(connection, ids)
            assert (await read_entries(connection, [ids[4]]))[ids[4]].digest != before, column
            await transaction.rollback()
    async with world.database.connection() as connection:
        await change("actor", "'eve'")(connection, ids)
    verdict = await verify(world)
    [fault] = verdict.faults
    assert (fault.entry, fault.seal) == (ids[4], 2)
    assert "was changed" in fault.what
    assert (await verify(world, tenant_no=OTHER_TENANT)).is_intact


async def swap(connection: Connection, ids: list[UUID]) -> None:
    """Exchange the content of two entries."""
    rows = await connection.fetch("SELECT id, subject, detail FROM ondot.audit WHERE id = ANY ($1)", ids[1:3])
    one, two = rows
    for row, other in ((one, two), (two, one)):
        await connection.execute(
            "UPDATE ondot.audit SET subject = $2, detail = $3 WHERE id = $1",
            row["id"],
            other["subject"],
            other["detail"],
        )


async def insert_past_the_log(connection: Connection, ids: list[UUID]) -> None:
    """Directly into the table of the day, where no trigger notices it."""
    day = await connection.fetchval("SELECT tableoid::regclass::text FROM ondot.audit WHERE id = $1", ids[0])
    await connection.execute(
        f"INSERT INTO {day} (id, tenant_no, actor, action) VALUES ($1, 1, 'eve', 'job.pause')",
        UUID(int=ids[4].int + 1),
    )


async def insert_and_hide(connection: Connection, ids: list[UUID]) -> None:
    """Through the table, with the row removed that waits for the seal."""
    await connection.execute(
        "INSERT INTO ondot.audit (id, tenant_no, actor, action) VALUES ($1, 1, 'eve', 'job.pause')",
        UUID(int=ids[4].int + 1),
    )
    await connection.execute("DELETE FROM ondot.audit_open")


async def reverse_seal(connection: Connection, ids: list[UUID]) -> None:
    """Exchange two seals."""
    for of, to in ((1, 9), (2, 1), (9, 2)):
        await connection.execute("UPDATE ondot.audit_seal SET seq = $2 WHERE tenant_no = 1 AND seq = $1", of, to)


async def move_entry(connection: Connection, ids: list[UUID]) -> None:
    await connection.execute(
        "UPDATE ondot.audit_seal SET ids = ARRAY[ids[2], ids[1], ids[3]] WHERE tenant_no = 1 AND seq = 2"
    )


def remove(number: int) -> Tamper:
    return lambda connection, ids: connection.execute("DELETE FROM ondot.audit WHERE id = $1", ids[number])


def remove_seal(seq: int) -> Tamper:
    return lambda connection, ids: connection.execute(
        "DELETE FROM ondot.audit_seal WHERE tenant_no = 1 AND seq = $1", seq
    )


@pytest.mark.parametrize(
    ("tamper", "what", "entry"),
    [
        pytest.param(remove(0), "missing", 0, id="the first entry is removed"),
        pytest.param(remove(4), "missing", 4, id="an entry in the middle is removed"),
        pytest.param(remove(8), "missing", 8, id="the last entry is removed"),
        pytest.param(swap, "was changed", 1, id="two entries are swapped"),
        pytest.param(insert_past_the_log, "in no seal", None, id="an entry is inserted past the log"),
        pytest.param(insert_and_hide, "in no seal", None, id="an entry is inserted and hidden"),
        pytest.param(remove_seal(1), "Seal 1 is missing", None, id="the first seal is removed"),
        pytest.param(remove_seal(2), "Seal 2 is missing", None, id="a seal in the middle is removed"),
        pytest.param(remove_seal(3), "in no seal", 6, id="the last seal is removed"),
        pytest.param(reverse_seal, "does not follow", None, id="two seals are swapped"),
        pytest.param(move_entry, "Seal 2 was changed", None, id="the order in a seal is changed"),
    ],
)
@proves("T6")
async def test_what_was_done_past_ondot_is_found(world: World, tamper: Tamper, what: str, entry: int | None) -> None:
    ids = await sealed_log(world)
    async with world.database.connection() as connection:
        await tamper(connection, ids)
    verdict = await verify(world)
    assert not verdict.is_intact
    assert what in verdict.faults[0].what
    if entry is not None:
        assert verdict.faults[0].entry == ids[entry]
    assert (await verify(world, tenant_no=OTHER_TENANT)).is_intact


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("at", "at + interval '1 microsecond'"),
        ("count", "count + 1"),
        ("from_id", "to_id"),
        ("to_id", "from_id"),
        ("format", "2"),
        ("ids", "ids[2:]"),
        ("digests", "set_byte(digests, 3, 255 - get_byte(digests, 3))"),
        ("prev", "set_byte(prev, 0, 255 - get_byte(prev, 0))"),
        ("hash", "set_byte(hash, 0, 255 - get_byte(hash, 0))"),
        ("mac", "set_byte(mac, 0, 255 - get_byte(mac, 0))"),
    ],
)
@proves("T6")
async def test_a_change_of_a_seal_is_found(world: World, column: str, value: str) -> None:
    await sealed_log(world)
    async with world.database.connection() as connection:
        await connection.execute(f"UPDATE ondot.audit_seal SET {column} = {value} WHERE tenant_no = 1 AND seq = 2")
    verdict = await verify(world)
    assert not verdict.is_intact
    assert any(fault.seal == 2 for fault in verdict.faults)


async def rewrite(world: World, key: SealKey | None) -> None:
    """Remove an entry and compute the whole chain again, as a user could who can write to the tables."""
    async with world.database.transaction() as connection:
        stored = await list_seals(connection, DEFAULT_TENANT, after=0, through=99, limit=99)
        ids = [id_ for seal in stored for id_ in seal.seal.ids]
        await connection.execute("DELETE FROM ondot.audit WHERE id = $1", ids[4])
        entries = await read_entries(connection, ids)
        await connection.execute("DELETE FROM ondot.audit_seal WHERE tenant_no = 1")
        made: Seal | None = None
        for old in stored:
            listed = [(id_, entries[id_].digest) for id_ in old.seal.ids if id_ in entries]
            made = make_seal(DEFAULT_TENANT, None if made is None else (made.seq, made.hash), old.seal.at, listed, key)
            await insert_seals(connection, [made])


@pytest.mark.parametrize("key", [None, OTHER], ids=["without a key", "with another key"])
@proves("T6")
async def test_a_chain_that_was_rewritten_without_the_key_is_found(world: World, key: SealKey | None) -> None:
    await sealed_log(world)
    before = (await verify(world)).head
    await rewrite(world, key)
    verdict = await verify(world)
    [fault] = verdict.faults
    assert "not signed with a known key" in fault.what
    assert (await verify(world, keys=())).is_intact, "without a key, only a head of the log shows it"
    assert not (await verify(world, keys=(), head=before)).is_intact


@proves("T6")
async def test_a_chain_whose_end_was_cut_off_is_found_by_a_head_of_the_log(world: World) -> None:
    ids = await sealed_log(world)
    with capture_logs() as logs:
        await write(world)
        await seal(world)
    [head] = [bytes.fromhex(entry["head"]) for entry in logs if entry["event"] == "audit.sealed"]
    assert (await verify(world, head=head)).is_intact
    last = (await ids_of(world))[-1]
    assert last not in ids
    async with world.database.connection() as connection:
        await connection.execute("DELETE FROM ondot.audit_seal WHERE tenant_no = 1 AND seq = 4")
        await connection.execute("DELETE FROM ondot.audit WHERE id = $1", last)
    assert (await verify(world)).is_intact
    verdict = await verify(world, head=head)
    assert "No seal has the hash" in verdict.faults[0].what


@proves("T6")
async def test_an_entry_that_is_removed_before_its_seal_stays_on_record_as_removed(world: World) -> None:
    await write(world, 2)
    async with world.database.connection() as connection:
        await connection.execute("DELETE FROM ondot.audit WHERE id = (SELECT min(id::text)::uuid FROM ondot.audit)")
    with capture_logs() as logs:
        await seal(world)
    assert "audit.removed" in {entry["event"] for entry in logs}
    [fault] = (await verify(world)).faults
    assert "removed before it was sealed" in fault.what


@proves("T6")
async def test_a_new_key_signs_every_chain_and_the_old_one_is_needed_no_more(world: World) -> None:
    await write(world)
    await seal(world, None)
    assert not (await verify(world)).is_intact, "the key was set after the seal"
    await seal(world, KEY)
    assert (await verify(world)).is_intact
    await write(world, 1, OTHER_TENANT)
    await seal(world, KEY)
    await seal(world, OTHER)
    for tenant_no, seals in ((DEFAULT_TENANT, 3), (OTHER_TENANT, 2)):
        verdict = await verify(world, (OTHER,), tenant_no)
        assert (verdict.is_intact, verdict.seals, verdict.signed) == (True, seals, 1)
    assert await seal(world, OTHER) == 0


@proves("T6")
async def test_a_transaction_that_commits_late_delays_its_own_entries_only(world: World) -> None:
    async with world.second_connection() as late:
        transaction = late.transaction()
        await transaction.start()
        await record(late, DEFAULT_TENANT, BY, "job.pause", None)
        await world.advance(20 * 60)
        await write(world, 2)
        await seal(world)
        verdict = await verify(world)
        assert (verdict.is_intact, verdict.entries, verdict.waiting) == (True, 2, 0)
        await transaction.commit()
    verdict = await verify(world)
    assert (verdict.is_intact, verdict.entries, verdict.waiting) == (True, 2, 1)
    await seal(world)
    verdict = await verify(world)
    assert (verdict.is_intact, verdict.entries, verdict.waiting, verdict.seals) == (True, 3, 0, 2)


@proves("T6")
async def test_a_clock_that_is_set_does_not_break_the_chain(world: World) -> None:
    for seconds in (0, 86_400 * 20, -86_400 * 40, 3600):
        await world.set_clock(world.now + timedelta(seconds=seconds))
        await write(world, 2)
        await seal(world)
    verdict = await verify(world)
    assert (verdict.is_intact, verdict.entries, verdict.seals) == (True, 8, 4)


@proves("T6")
async def test_two_sealers_at_once_make_one_chain(world: World) -> None:
    await write(world, 50)
    async with world.second_connection() as other:
        transaction = other.transaction()
        await transaction.start()
        assert await other.fetchval("SELECT pg_try_advisory_xact_lock($1)", 0x6F6E646F745365)
        assert await seal(world) == 0
        await transaction.rollback()

    async def write_and_seal() -> None:
        for _ in range(5):
            await write(world, 2)
            await seal(world)

    await asyncio.gather(*(write_and_seal() for _ in range(4)))
    await seal(world)
    verdict = await verify(world)
    assert (verdict.is_intact, verdict.entries, verdict.waiting) == (True, 90, 0)


@proves("T6")
async def test_a_sealer_that_is_killed_leaves_nothing_half_done(world: World) -> None:
    await write(world, 3)
    sealer = Sealer(world.database, KEY)
    async with world.second_connection() as other:
        transaction = other.transaction()
        await transaction.start()
        await other.execute("SELECT FROM ondot.audit_open FOR UPDATE")
        sealing = asyncio.ensure_future(sealer.one_pass())
        await world.until_a_lock_is_awaited()
        await other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        with pytest.raises(Exception, match="PostgreSQL"):
            await sealing
        await transaction.rollback()
    assert await world.count("audit_seal") == 0
    assert (await verify(world)).waiting == 3
    await seal(world)
    assert (await verify(world)).entries == 3


@proves("T6")
async def test_a_flood_of_one_tenant_is_sealed_in_parts_and_leaves_others_in_turn(world: World) -> None:
    many = ENTRIES_A_PASS * 3
    async with world.database.connection() as connection:
        await record_all(connection, DEFAULT_TENANT, BY, "dead_letter.replay", [(None, {})] * many)
    await world.advance(0.01)
    await write(world, 1, OTHER_TENANT)
    assert await seal(world) == 4
    verdict = await verify(world)
    assert (verdict.is_intact, verdict.entries, verdict.waiting) == (True, many, 0)
    assert (await verify(world, tenant_no=OTHER_TENANT)).entries == 1


@proves("T6")
async def test_a_range_of_time_is_verified_with_all_seals_between(world: World) -> None:
    begin = world.now
    ids = await sealed_log(world)
    second: dict[str, Any] = {"from_at": begin + timedelta(seconds=1), "to_at": begin + timedelta(seconds=2)}
    assert (await verify(world, **second)).entries == 3
    async with world.database.connection() as connection:
        await remove(0)(connection, ids)
    assert (await verify(world, **second)).is_intact
    async with world.database.connection() as connection:
        await remove(4)(connection, ids)
    assert (await verify(world, **second)).faults[0].entry == ids[4]
    assert (await verify(world, from_at=begin + timedelta(days=9))).entries == 0


@proves("T6")
async def test_heads_are_logged_at_a_bounded_rate(world: World) -> None:
    at_s = 0.0
    sealer = Sealer(world.database, KEY, lambda: at_s)
    tenants = LOGGED_A_PASS + 5

    async def seal_all() -> list[int]:
        for tenant_no in range(1, tenants + 1):
            await write(world, 1, TenantNo(tenant_no))
        with capture_logs() as logs:
            await sealer.one_pass()
        return [entry["tenant_no"] for entry in logs if entry["event"] == "audit.sealed"]

    first = await seal_all()
    at_s = 1.0
    rest = await seal_all()
    assert (len(first), len(rest)) == (LOGGED_A_PASS, 5)
    assert not set(first) & set(rest)
    at_s = 2.0
    assert await seal_all() == []
    at_s = LOGGED_EVERY_S + 0.5
    assert len(await seal_all()) == LOGGED_A_PASS
