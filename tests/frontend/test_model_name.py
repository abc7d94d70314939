"""frontend/model_name.py: names as they come in paths and messages, and what is refused."""

import pytest

from shoal.errors import InvalidArgumentError
from shoal.frontend.model_name import check_name, decode_name


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("simple", "simple"),
        ("a_b-1.0", "a_b-1.0"),
        ("a%20b", "a b"),
        ("\xc3\xa9", "é"),
        ("a%zz", "a%zz"),
        ("...", "..."),
    ],
)
def test_a_name_is_decoded_once(raw: str, name: str) -> None:
    assert decode_name(raw) == name


def test_a_long_name_is_measured_in_bytes() -> None:
    assert decode_name("%C3%A9" * 127) == "é" * 127
    with pytest.raises(InvalidArgumentError, match=r"\(256 bytes\)"):
        decode_name("%C3%A9" * 128)


@pytest.mark.parametrize("name", ["simple", "a b", "é" * 127, "..."])
def test_a_name_in_a_message_is_taken_as_it_is(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("..", "invalid model name '..', model name must not contain path traversal characters"),
        ("a/b", "invalid model name 'a/b', model name must not contain path traversal characters"),
        (
            "a\nb",
            "invalid model name 'a\nb' (3 bytes): expected at most 255 bytes of UTF-8 without control characters. ",
        ),
        ("é" * 128, f"invalid model name '{'é' * 80}' (256 bytes): expected at most 255 bytes of UTF-8 without "),
    ],
)
def test_a_name_that_can_be_no_directory_is_refused(name: str, sentence: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        check_name(name)
    assert str(raised.value).startswith(sentence)
