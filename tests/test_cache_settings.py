"""The response cache's settings: what they come to, and what is refused."""

import sys

import pytest

from shoal.cache_settings import cache_bytes, check_cache, redis_settings
from shoal.errors import InvalidArgumentError

SECRETS = {"TRITONCACHE_REDIS_USERNAME": "me", "TRITONCACHE_REDIS_PASSWORD": "secret"}


def test_only_the_host_must_be_said() -> None:
    config = {"redis": {"host": "h"}}
    check_cache(config, "")
    settings = redis_settings(config, {})
    assert settings is not None
    assert settings == ("h", 6379, "", "", 0, 1.0, 0.1, False, "", "", "", "", "")
    assert cache_bytes(config) == 64 << 20


def test_all_of_tritons_settings() -> None:
    said = {
        "host": "h", "port": "1", "user": "u", "password": "p", "db": "2", "connect_timeout": "30",
        "socket_timeout": "40", "pool_size": "5", "wait_timeout": "6", "tls_enabled": "true", "cert": "c", "key": "k",
        "cacert": "a", "cacert_dir": "d", "sni": "s",
    }  # fmt: skip
    config = {"redis": {**said, "size": "5000"}}
    check_cache(config, "")
    assert redis_settings(config, SECRETS) == ("h", 1, "u", "p", 2, 0.03, 0.04, True, "c", "k", "a", "d", "s")
    assert cache_bytes(config) == 5000


def test_redis_is_refused_without_what_speaks_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hiredis", None)
    with pytest.raises(InvalidArgumentError, match=r"needs hiredis, .*pip install 'shoal\[redis\]'"):
        check_cache({"redis": {"host": "h"}}, "")
    check_cache({"local": {"size": "5000"}}, "")


@pytest.mark.parametrize("said", [{"connect_timeout": "0"}, {"socket_timeout": "0"}])
def test_nothing_takes_for_ever(said: dict[str, str]) -> None:
    assert redis_settings({"redis": {"host": "h", **said}}, {}) == redis_settings({"redis": {"host": "h"}}, {})


def test_secrets_come_from_the_environment_where_no_flag_says_them() -> None:
    settings = redis_settings({"redis": {"host": "h", "user": "you"}}, SECRETS)
    assert settings is not None
    assert (settings.user, settings.password) == ("you", "secret")


@pytest.mark.parametrize(
    ("said", "is_tls"), [({}, False), ({"cacert": "a"}, True), ({"cacert": "a", "tls_enabled": "false"}, False)]
)
def test_certificates_imply_tls(said: dict[str, str], is_tls: bool) -> None:
    settings = redis_settings({"redis": {"host": "h", **said}}, {})
    assert settings is not None
    assert settings.is_tls is is_tls


def test_there_need_be_no_redis() -> None:
    for config in ({}, {"local": {"size": "5000"}}):
        assert redis_settings(config, SECRETS) is None
    assert (cache_bytes({}), cache_bytes({"local": {"size": "5000"}})) == (0, 5000)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"port": "0"}, "'port' is a number from 1 to 65535, got '0'"),
        ({"port": "nonexistent"}, "'port' is a number from 1 to 65535, got 'nonexistent'"),
        ({"socket_timeout": "-1"}, "'socket_timeout' is a number from 0 to 600000, got '-1'"),
        ({"size": "10"}, "'size' is a number from 1000 to"),
        ({"tls_enabled": "yes"}, "'tls_enabled' is true or false, got 'yes'"),
        ({"key": "k"}, "'key' belongs to a 'cert'"),
        ({"pasword": "x"}, "there is no setting 'pasword'; there are cacert, cacert_dir, cert, connect_timeout, db, "),
    ],
)
def test_what_is_refused(said: dict[str, str], sentence: str) -> None:
    with pytest.raises(InvalidArgumentError, match="Failed to initialize RedisCache") as caught:
        check_cache({"redis": {"host": "h", **said}}, "")
    assert sentence in str(caught.value)
