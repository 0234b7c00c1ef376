"""The addresses of Redis that a setting takes (C4)."""

import pytest

from ondot.model.redis_urls import RedisAddress, parse_redis_url


@pytest.mark.parametrize("url", ["redis://h", "rediss://u:p@h:7000/3", "unix:///run/redis.sock?db=1", "REDIS://h:1"])
def test_one_server_keeps_its_url(url: str) -> None:
    assert parse_redis_url(url) == RedisAddress("server", url, has_tls=url.startswith("rediss"))


def test_sentinels_name_their_master_and_a_database() -> None:
    url = "rediss+sentinel://me:p%40ss@one:26379,two/mymaster/3"
    hosts = (("one", 26379), ("two", 26379))
    assert parse_redis_url(url) == RedisAddress("sentinel", url, hosts, "mymaster", 3, "me", "p@ss", has_tls=True)


def test_a_cluster_is_a_list_of_hosts() -> None:
    url = "redis+cluster://:secret@one,[::1]:7001"
    hosts = (("one", 6379), ("::1", 7001))
    assert parse_redis_url(url) == RedisAddress("cluster", url, hosts, password="secret")


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("", "must begin with one of redis://"),
        ("http://host", "must begin with one of redis://"),
        ("redis://", "must name a host"),
        ("unix://", "must name the socket"),
        ("redis+sentinel://host", "must name the master"),
        ("redis+sentinel://host/m/x", "must name the master"),
        ("redis+sentinel:///m", "must name hosts"),
        ("redis+cluster://a,,b", "must name hosts"),
        ("redis+cluster://a:99999", "cannot be parsed"),
        ("redis+cluster://a/3", "a cluster has only number 0"),
    ],
)
def test_what_is_no_address_is_rejected_with_what_to_write(url: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        parse_redis_url(url)
