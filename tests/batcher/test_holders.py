"""The holders' table against a slow, obvious model: a list of (block, holder) pairs."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.batcher.holders import Holders

BLOCKS = st.integers(min_value=1, max_value=4)
OWNERS = st.integers(min_value=1, max_value=3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("hold"), BLOCKS, OWNERS),
        st.tuples(st.just("release"), st.integers(min_value=0, max_value=30), OWNERS),
        st.tuples(st.just("hold part"), BLOCKS, st.integers(min_value=0, max_value=5)),
        st.tuples(st.just("release part"), BLOCKS, st.integers(min_value=0, max_value=5)),
        st.tuples(st.just("die"), st.just(0), OWNERS),
    ),
    max_size=40,
)


def key(owner: int, number: int) -> int:
    """A request's key: the client's owner id before its number of 40 bits."""
    return owner << 40 | number


def test_block_is_free_when_its_last_holder_goes() -> None:
    holders = Holders()
    holders.hold(7, key(1, 10))
    holders.hold(7, key(2, 11))
    assert (len(holders), holders.num_held) == (1, 2)
    assert holders.release(key(1, 10)) == 0
    assert holders.is_held(7)
    assert holders.release(key(2, 11)) == 7
    assert not holders.is_held(7)
    assert (len(holders), holders.num_held) == (0, 0)


def test_release_of_what_is_not_held_changes_nothing() -> None:
    holders = Holders()
    holders.hold(7, key(1, 10))
    assert holders.release(key(1, 99)) == 0
    assert holders.is_held(7)


@given(STEPS)
def test_equals_a_list_of_pairs(steps: list[tuple[str, int, int]]) -> None:
    holders = Holders()
    pairs: list[tuple[int, int]] = []
    parts: list[tuple[int, int]] = []
    number = 0
    for verb, value, owner in steps:
        before = {block for block, _ in [*pairs, *parts]}
        if verb == "hold":
            number += 1
            holders.hold(value, key(owner, number))
            pairs.append((value, key(owner, number)))
            continue
        if verb == "hold part":  # of one of six requests of the last client
            holders.hold_part(value, key(3, owner))
            parts.append((value, key(3, owner)))
            continue
        if verb == "release part":
            freed = {holders.release(key(3, owner), value)} - {0}
            if (value, key(3, owner)) in parts:
                parts.remove((value, key(3, owner)))
        elif verb == "release":
            freed = {holders.release(key(owner, value))} - {0}
            pairs = [pair for pair in pairs if pair[1] != key(owner, value)]
        else:
            freed = set(holders.release_owner(owner))
            pairs = [pair for pair in pairs if pair[1] >> 40 != owner]
            parts = [part for part in parts if part[1] >> 40 != owner]
        left = {block for block, _ in [*pairs, *parts]}
        assert freed == before - left
        assert (len(holders), holders.num_held) == (len(left), len(pairs) + len(parts))
