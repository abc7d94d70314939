"""passwords.py: what is a password, and what only looks like one."""

import pytest

from shoal.passwords import shown_url, without_passwords


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://user:secret@host:8000", "http://user:***@host:8000"),
        ("'https://user:secret@host/x?y#z' is refused", "'https://user:***@host/x?y#z' is refused"),
        ("redis://:secret@host:6379/0", "redis://:***@host:6379/0"),
        ("grpc://u:se@cret@host:8001", "grpc://u:***@host:8001"),
        ("grpc://u:@host", "grpc://u:***@host"),
        ("http://u:se/cret@host:80/a", "http://u:***@host:80/a"),
        ("http://u:12345@host/a", "http://u:***@host/a"),
        ("http://u:p@[::1]:80/a", "http://u:***@[::1]:80/a"),
        ("http://u:it's@host", "http://u:***@host"),
        ("http://a:b@c, https://d:e@f", "http://a:***@c, https://d:***@f"),
        ("https://token@host/x.mar", "https://***@host/x.mar"),
        ("https://token@host:80/a@b", "https://***@host:80/a@b"),
        ("https://me@corp.com:secret@host/a", "https://***@host/a"),
        ("https://me@corp.com:se/cret@host/a", "https://***@host/a"),
        ("'https://token@host', 'https://token@host:1'", "'https://***@host', 'https://***@host:1'"),
    ],
)
def test_a_password_is_left_out(text: str, shown: str) -> None:
    assert without_passwords(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "http://host:8000/models/a@b",
        "http://[::1]:8000/a@b",
        "s3://bucket/a:b@c",
        "http://host:8000, or ask admin@host",
        "user:secret@host: no URL",
        '{"url":"http://host:8000","mail":"admin@host"}',
    ],
)
def test_other_texts_stay(text: str) -> None:
    assert without_passwords(text) == text


def test_a_url_may_lack_its_scheme() -> None:
    assert shown_url("user:secret@host:8000") == "user:***@host:8000"
    assert shown_url("token@host:8000/x") == "***@host:8000/x"
    assert shown_url("host:8000") == "host:8000"
    assert shown_url("resnet.mar") == "resnet.mar"


@pytest.mark.parametrize("password", ["se cret", 'se"cret', "se\ncret", "se/cr@et"])
def test_a_password_of_a_url_may_have_any_character(password: str) -> None:
    """Commands showed a URL whole whose password has a blank, since its host cannot be one."""
    assert shown_url(f"http://user:{password}@host:8000") == "http://user:***@host:8000"
    assert shown_url(f"user:{password}@host:8000") == "user:***@host:8000"
    assert shown_url(f"me@corp.com:{password}@host:8000") == "***@host:8000"
    assert shown_url(f"http://host:8000/{password}@b") == f"http://host:8000/{password}@b"


@pytest.mark.parametrize(
    "text", ["://a:" * 200_000 + " @", "x@" + "://a:" * 200_000, "://a:1/" * 150_000 + " @", "://a" * 200_000 + " @"]
)
def test_a_long_text_of_a_client_s_takes_no_longer_for_what_it_says(text: str) -> None:
    """A line of a megabyte took a quarter of an hour."""
    assert without_passwords(text) == text
