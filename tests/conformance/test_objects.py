"""Every object storage: an object is read as it was put, a missing one is no error, and errors name the place (E14)."""

import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from ondot.model.errors import Misconfigured, Unavailable
from ondot.model.ids import ExecutionId, TenantNo, uuid7
from ondot.objects import open_objects
from ondot.ports.objects import Objects, key_of
from ondot.settings import default_home, load_settings
from tests.conformance.buckets import KEY_ID, SECRET, Bucket, a_bucket
from tests.proves import proves

KEY = "1/2026/11/15/an-execution/1/result.json"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A bucket, and the variables that lead to it."""
    with a_bucket() as bucket:
        monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        monkeypatch.setenv("AWS_REGION", "eu-central-1")
        yield bucket


@pytest.fixture(params=["directory", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    if request.param == "directory":
        return open_objects(load_settings(home=tmp_path / "home"))
    request.getfixturevalue("bucket")
    return open_objects(load_settings(objects_url="s3://ondot/some/prefix"))


async def read(objects: Objects, key: str) -> bytes | None:
    stored = await objects.get(key)
    if stored is None:
        return None
    content = b"".join([chunk async for chunk in stored.chunks])
    assert stored.size == len(content)
    return content


@proves("E14")
async def test_an_object_is_read_as_it_was_put_and_replaced_by_the_next_put(objects: Objects) -> None:
    large = bytes(range(256)) * 4096
    await objects.put(KEY, large)
    assert await read(objects, KEY) == large
    await objects.put(KEY, b"other")
    assert await read(objects, KEY) == b"other"


@proves("E14")
async def test_a_file_is_put_as_it_is(objects: Objects) -> None:
    with tempfile.SpooledTemporaryFile(max_size=1024) as file:
        file.write(b"line\n" * 10_000)
        file.seek(0)
        await objects.put(KEY, file)
    assert await read(objects, KEY) == b"line\n" * 10_000


@proves("E14")
async def test_a_missing_object_is_none_and_can_be_deleted(objects: Objects) -> None:
    assert await read(objects, KEY) is None
    await objects.put(KEY, b"x")
    await objects.delete([KEY, "1/never/there"])
    assert await read(objects, KEY) is None


@proves("E14")
async def test_a_bucket_gets_its_prefix_and_the_signature_of_the_key(bucket: Bucket) -> None:
    await open_objects(load_settings(objects_url="s3://ondot/some/prefix")).put(KEY, b"x")
    assert bucket.objects == {f"/ondot/some/prefix/{KEY}": b"x"}


@proves("E14", "P12")
async def test_a_bucket_that_refuses_is_reported_with_its_place_and_without_the_secret(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    objects = open_objects(load_settings(objects_url="s3://ondot/some/prefix"))
    with pytest.raises(Unavailable, match="s3://ondot/some/prefix") as raised:
        await objects.put(KEY, b"x")
    assert "another" not in raised.value.message
    assert bucket.objects == {}
    with pytest.raises(Unavailable):
        await objects.get(KEY)


@proves("E14")
async def test_a_directory_that_cannot_be_created_is_reported_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    objects = open_objects(load_settings(objects_url=f"file://{tmp_path}/file/objects"))
    with pytest.raises(Unavailable, match="file/objects cannot be used"):
        await objects.put(KEY, b"x")


@proves("E14", "P12")
async def test_a_directory_is_its_owners_alone(tmp_path: Path) -> None:
    await open_objects(load_settings(home=tmp_path)).put(KEY, b"x")
    assert stat.S_IMODE((tmp_path / "objects").stat().st_mode) == 0o700
    assert (tmp_path / "objects" / KEY).read_bytes() == b"x"


@proves("E14")
def test_without_a_url_it_is_the_directory_under_the_home(tmp_path: Path) -> None:
    assert open_objects(load_settings(home=tmp_path)).place == f"{tmp_path.as_uri()}/objects"
    assert open_objects(load_settings()).place == f"{default_home().as_uri()}/objects"
    assert open_objects(load_settings(objects_url="file:///srv/a%20b/")).place == "file:///srv/a%20b"


@proves("E14", "P12")
@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("/srv/objects", "file:///directory"),
        ("file://srv/objects", "three slashes"),
        ("file:///", "file:///directory"),
        ("s3://", "s3://bucket/prefix"),
        ("gs://bucket", "s3://bucket/prefix"),
        ("s3://id:secret@bucket/prefix", "no credentials"),
    ],
)
def test_a_url_that_names_no_place_is_refused_with_what_to_write(url: str, message: str) -> None:
    with pytest.raises(Misconfigured, match=message) as raised:
        load_settings(objects_url=url)
    assert "ONDOT_OBJECTS_URL" in raised.value.message
    assert "secret" not in raised.value.message


@proves("E14")
def test_a_key_contains_its_owner_and_its_day() -> None:
    id_ = ExecutionId(UUID(bytes=uuid7(1_794_700_800_000 * 4096, 7)))
    assert key_of(TenantNo(3), id_, 2, "result") == f"3/2026/11/15/{id_}/2/result.json"
    assert key_of(TenantNo(3), id_, 2, "log").endswith("/2/log.txt")
