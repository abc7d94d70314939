"""shoal/server_url.py: which URLs name a server, and what is said of others."""

import re

import pytest

from shoal.server_url import split_url

FORMS = "a server's URL is http://host:port or https://host:port"


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("http://localhost", "localhost", None),
        ("HTTPS://gpu-1:8000/path", "gpu-1", 8000),
        ("http://[::1]:65535", "::1", 65535),
    ],
)
def test_urls_of_servers(url: str, host: str, port: int | None) -> None:
    parts = split_url(url, ("http", "https"), url)
    assert (parts.host, parts.port) == (host, port)


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("http://", "names no host"),
        ("http://:8000", "names no host"),
        ("https://user@", "names no host"),
        ("http://[localhost", "names no host"),
        ("http://gpu..example", "names a host that cannot be one"),
        (f"http://{'a' * 64}", "names a host that cannot be one"),
        ("http://a b:8000", "names a host that cannot be one"),
        ("http://\udcff", "names a host that cannot be one"),
        ("grpc://localhost:8001", "begins with grpc://"),
        ("ftp://localhost", "begins with ftp://"),
        ("http://localhost:0", "has a port that is no number from 1 to 65535"),
        ("http://localhost:65536", "has a port that is no number from 1 to 65535"),
        ("http://localhost:http", "has a port that is no number from 1 to 65535"),
    ],
)
def test_what_is_wrong_with_others(url: str, what: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"'{url.replace('user@', '***@')}' {what}: {FORMS}")):
        split_url(url, ("http", "https"), url)


def test_a_user_is_no_part_of_a_server_s_place_and_the_password_is_not_said() -> None:
    assert split_url("http://user:secret@gpu:8000/a", ("http",), "")[1:4] == ("gpu", 8000, "gpu:8000")
    with pytest.raises(ValueError, match=r"^'user:\*\*\*@gpu:x' has a port"):
        split_url("http://user:secret@gpu:x", ("http",), "user:secret@gpu:x")


def test_the_forms_of_several_schemes() -> None:
    with pytest.raises(
        ValueError, match=r"^'gpu:x' has .* is http://host:port, https://host:port or grpc://host:port$"
    ):
        split_url("http://gpu:x", ("http", "https", "grpc"), "gpu:x")
