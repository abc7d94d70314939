"""shoal/api_keys.py: what a file of keys may have, and which key a text is."""

import json
from typing import Any

import pytest

from shoal.api_keys import MAX_FILE_BYTES, MAX_KEYS, ApiKey, KeyRing, digest_of, entry_of, new_key, parse_keys
from shoal.errors import InvalidArgumentError

TEXT = "shoal_0123456789"


def file(**entries: Any) -> bytes:
    return json.dumps(entries).encode()


def test_a_file() -> None:
    shop, deploy = parse_keys(
        file(shop={"sha256": "ab" * 32, "scopes": ["infer"], "models": ["res*", "bert"]},
             deploy={"sha256": "cd" * 32, "scopes": ["admin", "metrics"]})
    )  # fmt: skip
    assert shop == ApiKey("shop", b"\xab" * 32, ("infer",), ("res*", "bert"))
    assert deploy == ApiKey("deploy", b"\xcd" * 32, ("admin", "metrics"), ("*",))
    assert parse_keys(b"{}") == ()


@pytest.mark.parametrize(
    ("models", "model", "covered"),
    [
        (["*"], "anything", True),
        (["resnet*"], "resnet50", True),
        (["resnet*"], "a_resnet", False),
        (["ResNet"], "resnet", False),
        (["m?", "n[12]"], "n2", True),
        (["m?"], "m", False),
        ([], "m", False),
    ],
)
def test_which_models_a_key_is_for(models: list[str], model: str, covered: bool) -> None:
    (key,) = parse_keys(file(k={"sha256": "ab" * 32, "scopes": ["infer"], "models": models}))
    assert key.covers(model) is covered
    assert key.covers_all is (models == ["*"])


GOOD = {"sha256": "ab" * 32, "scopes": ["infer"]}


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "it is no JSON"),
        (b"[]", "no JSON object"),
        (b"[" * 100_000, "it is no JSON"),
        (b'{"k": 1, "k": 2}', "'k' is there twice"),
        (b" " * (MAX_FILE_BYTES + 1), "at most"),
        (file(**{f"k{number}": GOOD for number in range(MAX_KEYS + 1)}), "at most 4096"),
        (file(k=1), "key 'k' is no JSON object"),
        (file(**{"": GOOD}), "no name for a key"),
        (file(**{"a\nb": GOOD}), "no name for a key"),
        (file(k={**GOOD, "model": ["m"]}), "key 'k' has 'model'; there are burst, max_in_flight, models, "),
        (file(k={**GOOD, "requests_per_second": 0}), "requests_per_second of key 'k' must be a number above 0"),
        (file(k={**GOOD, "requests_per_second": True}), "requests_per_second of key 'k' must be a number"),
        (file(k={**GOOD, "requests_per_second": float("nan")}), "requests_per_second of key 'k' must be a number"),
        (file(k={**GOOD, "max_in_flight": 1.5}), "max_in_flight of key 'k' must be a number above 0, and at most"),
        (file(k={**GOOD, "max_in_flight": 10**7}), "max_in_flight of key 'k' must be a number above 0, and at most"),
        (file(k={**GOOD, "burst": 5}), "key 'k' has a burst and no requests_per_second"),
        (file(k={"scopes": ["infer"]}), "sha256 of key 'k'"),
        (file(k={**GOOD, "sha256": "AB" * 32}), "sha256 of key 'k'"),
        (file(k={**GOOD, "sha256": "ab" * 31}), "sha256 of key 'k'"),
        (file(k={"sha256": "ab" * 32}), "scopes of key 'k' must be a list"),
        (file(k={**GOOD, "scopes": []}), "scopes of key 'k' must be some of infer, admin, metrics"),
        (file(k={**GOOD, "scopes": ["root"]}), "scopes of key 'k' must be some"),
        (file(k={**GOOD, "scopes": "infer"}), "scopes of key 'k' must be a list"),
        (file(k={**GOOD, "models": "*"}), "models of key 'k' must be a list"),
        (file(k={**GOOD, "models": ["m"] * 65}), "models of key 'k' must be at most 64"),
        (file(k={**GOOD, "models": [""]}), "models of key 'k' must be at most 64"),
        (file(k=GOOD, j=GOOD), "keys 'k' and 'j' are one key"),
    ],
)  # fmt: skip
def test_a_broken_file(data: bytes, sentence: str) -> None:
    with pytest.raises(InvalidArgumentError, match=sentence):
        parse_keys(data)


def test_a_key_is_found_by_its_text_alone() -> None:
    text, other = new_key(), new_key()
    assert text != other
    assert len(text) == len("shoal_") + 43
    (key,) = parse_keys(file(k=entry_of(text, ["infer"], ["*"])))
    ring = KeyRing([key])
    assert ring.find(text) is key
    for wrong in (other, "", text[:-1], text + "A", text.swapcase(), key.digest.hex(), "k", "\udcff", "é" * 10_000):
        assert ring.find(wrong) is None


def test_a_text_has_the_digest_that_other_tools_make_of_it() -> None:
    import hashlib

    assert digest_of(TEXT) == hashlib.sha256(b"shoal_0123456789").digest()
