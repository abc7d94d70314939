"""Suspects: how many deaths convict a content, what acquits it, and for how long it is refused."""

from typing import NamedTuple

import pytest

from shoal.batcher.scheduling.suspects import MAX_FACTOR, MAX_SUSPECTS, Digest, Suspects

REFUSAL_NS = 60


class Bytes(NamedTuple):
    """A content whose sample is the first of two numbers; `is_small`: short enough for a digest."""

    sample: Digest
    rest: int = 0
    is_small: bool = True

    def digest(self) -> Digest | None:
        return (*self.sample, self.rest)[1:] if self.is_small else None

    def describe(self) -> str:
        return "x"


A, B, C = (Bytes((0, number)) for number in (1, 2, 3))


def test_two_deaths_convict_a_request_that_was_alone_the_second_time() -> None:
    suspects = Suspects(REFUSAL_NS)
    assert not suspects.died([A, B], 2, 0)
    assert suspects.is_suspect(A.sample)
    assert suspects.is_suspect(B.sample)
    assert suspects.refusal(A, 0) is None
    ((content, suspect),) = suspects.died([A], 1, 10)
    assert (content, suspect.num_deaths) == (A, 2)
    refusal = suspects.refusal(A, 20)
    assert refusal is not None
    assert (refusal.num_deaths, refusal.left_ns) == (2, 50)
    assert suspects.refusal(B, 20) is None


def test_deaths_beside_others_convict_nothing_that_may_be_innocent() -> None:
    suspects = Suspects(REFUSAL_NS)
    for now_ns in range(5):
        assert not suspects.died([A, B], 2, now_ns)  # they come together, again and again
    assert not suspects.died([A], 2, 5)[1:]


def test_the_only_suspect_beside_newcomers_is_convicted_by_its_third_death() -> None:
    suspects = Suspects(REFUSAL_NS)
    assert not suspects.died([A, B], 2, 0)
    assert not suspects.died([A], 4, 1)
    ((content, _),) = suspects.died([A, C], 4, 2)
    assert content is A
    assert suspects.refusal(C, 3) is None


def test_an_answer_acquits() -> None:
    suspects = Suspects(REFUSAL_NS)
    suspects.died([A, B], 2, 0)
    suspects.lived(A.sample, 1)
    assert not suspects.is_suspect(A.sample)
    assert not suspects.died([A], 1, 2)


def test_a_refusal_is_for_all_bytes_and_an_equal_sample_is_executed() -> None:
    suspects = Suspects(REFUSAL_NS)
    suspects.died([A], 1, 0)
    suspects.died([A], 1, 1)
    other = Bytes(A.sample, rest=9)
    assert suspects.refusal(other, 2) is None
    suspects.lived(other.sample, 3)
    assert suspects.refusal(A, 4) is not None


@pytest.mark.parametrize("num_before", range(7))
def test_each_refusal_is_twice_as_long_and_one_more_death_is_enough_for_it(num_before: int) -> None:
    suspects, now_ns = Suspects(REFUSAL_NS), 0
    suspects.died([A], 1, now_ns)
    for number in range(num_before + 1):
        ((_, suspect),) = suspects.died([A], 1, now_ns)
        left_ns = REFUSAL_NS * min(MAX_FACTOR, 1 << number)
        assert suspect.refused_until_ns == now_ns + left_ns
        now_ns += left_ns
        assert suspects.refusal(A, now_ns - 1) is not None
        assert suspects.refusal(A, now_ns) is None
        suspects.forget_old(now_ns)
        assert suspects.is_suspect(A.sample)
    suspects.forget_old(now_ns + MAX_FACTOR * REFUSAL_NS)
    assert not len(suspects)


def test_a_content_that_is_too_large_for_a_digest_is_never_refused() -> None:
    suspects, large = Suspects(REFUSAL_NS), Bytes((0, 7), is_small=False)
    for now_ns in range(5):
        assert not suspects.died([large], 1, now_ns)
    assert suspects.refusal(large, 6) is None


def test_suspects_are_bounded_and_those_unseen_for_longest_go() -> None:
    suspects = Suspects(REFUSAL_NS)
    for number in range(MAX_SUSPECTS + 5):
        suspects.died([Bytes((1, number))], 1, number)
    assert len(suspects) == MAX_SUSPECTS
    assert not suspects.is_suspect((1, 4))
    assert suspects.is_suspect((1, 5))
