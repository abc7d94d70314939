"""Requests that name no version, while these are split by a header."""

from dataclasses import replace

from shoal.frontend.prepared import PreparedRequest, wishes_of
from shoal.frontend.recorded_headers import as_answered, with_sticky_key
from tests.star.entries import entry_of

PLAIN = PreparedRequest(entry_of("m", 0, []), "", (), (), False, {}, 1, 0, 5, 7, correlation_id="c", flags=3)
SPLIT = replace(PLAIN, entry=replace(PLAIN.entry, sticky_header="x-user"))


def key_of(prepared: PreparedRequest, user: str) -> int:
    return with_sticky_key(prepared, {"x-user": user}).sticky_key


def test_requests_of_one_user_have_one_key_of_32_bits_above_their_flags() -> None:
    keys = {key_of(SPLIT, str(user)) for user in range(100)}
    assert len(keys) == 100
    assert all(0 < key < 1 << 32 for key in keys)
    assert key_of(SPLIT, "7") == key_of(SPLIT, "7")
    assert key_of(replace(SPLIT, entry=replace(SPLIT.entry, name="other")), "7") != key_of(SPLIT, "7")
    wishes = wishes_of(with_sticky_key(SPLIT, {"x-user": "7"}))
    assert wishes is not None
    assert (wishes.priority, wishes.timeout_us, wishes.correlation_id) == (5, 7, "c")
    assert (wishes.flags & 0xFFFFFFFF, wishes.flags >> 32) == (3, key_of(SPLIT, "7"))


def test_without_the_header_or_a_split_a_request_has_its_own_settings() -> None:
    for prepared, headers in ((SPLIT, {}), (SPLIT, {"x-user": ""}), (PLAIN, {"x-user": "7"})):
        assert with_sticky_key(prepared, headers) is prepared
        assert wishes_of(prepared) is None


def test_an_answer_names_the_version_that_it_is_of() -> None:
    assert as_answered(PLAIN, 0) is PLAIN
    assert as_answered(PLAIN, 3).entry.version == 3
