"""The cache of specs: those of recurring jobs are kept, up to a number of bytes and specs, and none is lost."""

from ondot.store.specs import LARGE, Specs
from tests.proves import proves
from tests.world import World, every, job


@proves("N6")
async def test_the_cache_is_bounded_by_the_bytes_of_payloads_and_by_count(world: World) -> None:
    payload = b'{"text": "' + b"x" * 10_000 + b'"}'
    accepted = await world.submit_all([job(schedule=every(3600, world.now), payload=payload) for _ in range(60)])
    wanted = [(entry.id, 1) for entry in accepted]
    for kept, kept_bytes, most in ((20_000, 400_000, 40), (7, 400_000, 7)):
        specs = Specs(kept, kept_bytes)
        async with world.database.connection() as connection:
            for _ in range(2):
                assert (await specs.find(connection, wanted)).keys() == set(wanted)
                assert 5 <= len(specs) <= most
                assert len(specs) * 10_000 <= specs.bytes <= kept_bytes


@proves("N6")
async def test_a_very_large_spec_is_read_each_time_and_drives_out_no_other(world: World) -> None:
    small = await world.submit(job("small", schedule=every(3600, world.now)))
    large = await world.submit(
        job("large", schedule=every(3600, world.now), payload=b'"' + "ü".encode() * 5_000 + b'"')
    )
    specs = Specs(kept_bytes=15_000 * LARGE)
    async with world.database.connection() as connection:
        for _ in range(3):
            found = await specs.find(connection, [(small.id, 1), (large.id, 1)])
            assert {spec.name for spec in found.values()} == {"small", "large"}
            assert len(specs) == 1
