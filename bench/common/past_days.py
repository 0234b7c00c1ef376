"""A database of any age: day tables of the past, made at once instead of one per day."""

from ondot.store.connection import Connection

MAKE = """
DO $$
DECLARE
    cut ondot.day_table;
    past text;
    child text;
    day date;
BEGIN
    FOR cut IN SELECT * FROM ondot.day_table ORDER BY parent LOOP
        past := cut.parent || '_past';
        EXECUTE format('ALTER TABLE ondot.%I DETACH PARTITION ondot.%I', cut.parent, past);
        FOR day IN SELECT cut.first_day - n FROM generate_series(1, {days}) AS n LOOP
            child := cut.parent || '_' || to_char(day, 'YYYYMMDD');
            EXECUTE format('CREATE TABLE ondot.%I PARTITION OF ondot.%I FOR VALUES FROM (%L) TO (%L)', child,
                           cut.parent, ondot.day_starts(day), ondot.day_starts(day + 1));
        END LOOP;
        EXECUTE format('ALTER TABLE ondot.%I ATTACH PARTITION ondot.%I FOR VALUES FROM (MINVALUE) TO (%L)', cut.parent,
                       past, ondot.day_starts(cut.first_day - {days}));
        UPDATE ondot.day_table SET first_day = cut.first_day - {days} WHERE parent = cut.parent;
    END LOOP;
END $$
"""
AT_ONCE = 25
"""A table has up to six indexes, and each is locked until the end of the transaction."""


async def make_past_days(connection: Connection, days: int) -> None:
    """Make a table for each of the last days, in every table that is cut by day; `_past` must be empty."""
    for begin in range(0, days, AT_ONCE):
        await connection.execute(MAKE.format(days=min(AT_ONCE, days - begin)))
