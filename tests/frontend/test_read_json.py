"""The JSON door: what is read, what is refused with which sentence, and that refusing is fast."""

import math
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import rapidjson

from shoal.errors import InternalError, InvalidArgumentError, ShoalError
from shoal.frontend import read_json as door
from shoal.frontend.read_json import read_json

TOO_DEEP = "JSON nesting depth exceeds maximum allowed limit (100)"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{"a":[1,2.5,"x",true,null]}', {"a": [1, 2.5, "x", True, None]}),
        (b" [] \n", []),
        (b'{"a":1,"a":2}', {"a": 2}),
        (b"[Infinity,-Infinity,Inf,-Inf]", [math.inf, -math.inf, math.inf, -math.inf]),
        (b"18446744073709551615", 2**64 - 1),
        (b"18446744073709551616", 2.0**64),
        (b'"\\ud83d\\ude00"', "😀"),
        (b'\xef\xbb\xbf{"a":1}', {"a": 1}),
        (b"\xef\xbb\xbf[Inf,18446744073709551616]", [math.inf, 2**64]),
        (b"\xef\xbb\xbf18446744073709551616", 2.0**64),
    ],
)
def test_reads(text: bytes, value: object) -> None:
    assert read_json(memoryview(text)) == value


def test_numbers_beside_many_digits_are_exact() -> None:
    """Of RapidJSON's own numbers some are not the nearest."""
    numbers = [number / 997 for number in range(1000)]
    assert read_json(b'[NaN,"%b",%b]' % (b"1" * 309, str(numbers)[1:-1].encode()))[2:] == numbers
    assert read_json(b'[NaN,"%b",18446744073709551616]' % (b"1" * 309))[2] == 1 << 64


def test_reads_nan_between_numbers() -> None:
    first, second, third = read_json(b"[NaN,-NaN,0.1]")
    assert math.isnan(first)
    assert math.isnan(second)
    assert third == 0.1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "The document is empty. at 0"),
        (b"  ", "The document is empty. at 2"),
        (b"{a", "Missing a name for object member. at 1"),
        (b'{"a":1,}', "Missing a name for object member. at 7"),
        (b'{"a" 1}', "Missing a colon after a name of object member. at 5"),
        (b"[1,]", "Invalid value. at 3"),
        (b"[1 2]", "Missing a comma or ']' after an array element. at 3"),
        (b"nul", "Invalid value. at 3"),
        (b"/*c*/1", "Invalid value. at 0"),
        (b"\xef\xbb\xbf", "The document is empty. at 3"),
        (b'\xef\xbb\xbf{"a" 1}', "Missing a colon after a name of object member. at 8"),
        (b"\xef\xbb\xbf\xef\xbb\xbf{}", "Invalid value. at 3"),
        (b" \xef\xbb\xbf{}", "Invalid value. at 1"),
        (b'"\\ud800"', "The surrogate pair in string is invalid. at 1"),
        (b'"\\x"', "Invalid escape character in string. at 1"),
        (b'"abc', "Missing a closing quotation mark in string. at 4"),
        (b"1e999", "Number too big to be stored in double. at 0"),
        (b"[" + b"1" * 5000 + b"]", "Number too big to be stored in double. at 1"),
        (b"[NaN,1" + b"0" * 309 + b"]", "Number too big to be stored in double. at 5"),
        (b'["ab\xff"]', "Invalid encoding in string. at 4"),
        (b"1.", "Miss fraction part in number. at 2"),
        (b"{} x", "The document root must not be followed by other values. at 3"),
    ],
)
def test_refuses_in_the_words_of_rapidjson(text: bytes, message: str) -> None:
    with pytest.raises(InternalError) as caught:
        read_json(text)
    assert str(caught.value) == f"failed to parse the request JSON buffer: {message}"


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """A thread that waits for its turn has it as soon as the other one may be interrupted."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval_s)


@pytest.mark.usefixtures("quick_switches")
def test_a_large_text_leaves_other_threads_their_turn() -> None:
    """Of 128 pieces, each of which the other thread may have to wait for."""
    text, done, read = b"[NaN" + b",1.25" * (800 * 1024) + b"]", threading.Event(), list[list[float]]()

    def parse() -> None:
        read.append(read_json(text))
        done.set()

    parsing, num_turns = threading.Thread(target=parse), 0
    parsing.start()
    while not done.wait(1e-5):
        num_turns += 1
    parsing.join()
    assert num_turns >= 16
    assert read[0][1:] == [1.25] * (800 * 1024)


def test_no_large_text_is_parsed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor one with an integer of more digits than Python takes."""
    text = b"[NaN" + b",1.25" * (1 << 20) + b"," + b"9" * 5000 + b"]"
    monkeypatch.setattr(rapidjson, "loads", lambda *_arguments, **_modes: pytest.fail("at once"))
    with pytest.raises(InternalError, match="Number too big to be stored in double"):
        read_json(text)


def test_a_large_text_is_refused_in_the_same_words() -> None:
    text = b'["' + b"x" * (2 << 20) + b'",NaN,}'
    with pytest.raises(InternalError, match=rf"Invalid value\. at {len(text) - 1}$"):
        read_json(text)


def test_limits_the_size_before_anything_else() -> None:
    assert read_json(b"[1]", 3) == [1]
    with pytest.raises(InvalidArgumentError) as caught:
        read_json(b"[[[[", 3)
    assert str(caught.value) == (
        "request JSON size of 4 bytes exceeds the maximum allowed input size of 3 bytes. "
        "Use --http-max-input-size to increase the limit."
    )


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100 + b"]" * 100,
        b'{"a":' * 100 + b"1" + b"}" * 100,
        b"[" + b"[]," * 500 + b"[]]",
        b'["' + b"[" * 500 + b'"]',
        b'["\\"' + b"[" * 500 + b'"]',
        b'["\\\\","' + b"[{" * 500 + b'"]',
    ],
)
def test_accepts_a_hundred_levels_and_brackets_in_strings(text: bytes) -> None:
    read_json(text)


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 101 + b"]" * 101,
        b'{"a":' * 101 + b"1" + b"}" * 101,
        b'["\\\\",' + b"[" * 100 + b"]" * 101,
        b"[" + b"[]," * 500 + b"[" * 100 + b"]" * 101,
        b"[" * 250_000,
    ],
)
def test_refuses_more_than_a_hundred_levels(text: bytes) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        read_json(text)
    assert str(caught.value) == TOO_DEEP


def test_the_depth_of_a_large_body_takes_no_longer_than_reading_it_would() -> None:
    text = b'["' + b'\\"[\\\\' * (1 << 20) + b'"' + b",[" * 101
    start_s = time.process_time()
    with pytest.raises(InvalidArgumentError):
        read_json(text)
    assert time.process_time() - start_s < 1  # measured 0.05; a loop in Python takes seconds


@pytest.mark.parametrize(
    ("access", "value", "kind"),
    [
        (door.as_string, 1, "non-string as string"),
        (door.as_bool, 1, "non-boolean as boolean"),
        (door.as_list, {}, "non-array as array"),
        (door.as_uint, -1, "non-unsigned-integer as unsigned-integer"),
        (door.as_uint, 1.0, "non-unsigned-integer as unsigned-integer"),
        (door.as_uint, True, "non-unsigned-integer as unsigned-integer"),
        (door.as_uint, 2**64, "non-unsigned-integer as unsigned-integer"),
    ],
)
def test_typed_access_refuses_in_the_words_of_the_wrapper(access: Any, value: object, kind: str) -> None:
    with pytest.raises(ShoalError) as caught:
        access(value, "f")
    assert (caught.value.http_status, str(caught.value)) == (500, f"Unable to parse 'f': attempt to access JSON {kind}")


LARGE = b'{"a":"' + b"x:" * (1 << 19) + b'","b":%s}'


@pytest.mark.parametrize(
    ("text", "num_members", "key"),
    [
        (b'{"a":1,"b":{"a":2}}', 3, None),
        (b'{"a":1,"b":2,"a":3}', 2, "a"),
        (b'{"a":1,"b":{"c":2,"c":2}}', 3, "c"),
        (b'{"a":":","b":2}', 2, None),
        (b'{"a":1,"\\u0061":NaN}', 1, "a"),
        (b'\xef\xbb\xbf{"a":1,"a":2}', 1, "a"),
        (b'{"a":1,"a":1,"b":1e999}', 2, None),  # RapidJSON does not read the number, and so not to the object's end
        (LARGE % b"1", 2, None),
        (LARGE % b'{"c":1,"c":2}', 3, "c"),
    ],
)
def test_a_key_that_an_object_has_twice(text: bytes, num_members: int, key: str | None) -> None:
    assert door.repeated_key(memoryview(text), num_members) == key


def test_members_of_what_is_no_object_do_not_exist() -> None:
    assert door.find([1], "a") is None
    assert not door.has(None, "a")
    assert door.has({"a": None}, "a")
    with pytest.raises(InternalError) as caught:
        door.member([], "a")
    assert str(caught.value) == "Unable to parse 'a': attempt to access non-existing object member 'a'"
