"""How models share what a client has: whatever they ask for, and in whatever order, none takes what others need."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.shm.shares import WEIGHT, Shares, least_ample, may_take

#: Models that ask for one more, or whose oldest request is answered, in any order.
SCHEDULES = st.lists(st.tuples(st.booleans(), st.integers(1, 6)), max_size=300)


def greedy(total: int, num_models: int) -> list[int]:
    """What each model comes to hold, where all take turns until none may take more."""
    held = [0] * num_models
    while any(may_take(each, total - sum(held)) for each in held):
        for model in range(num_models):
            held[model] += may_take(held[model], total - sum(held))
    return held


def test_a_model_alone_gets_most_and_several_get_the_same() -> None:
    assert greedy(1200, 1) == [800]
    assert greedy(1200, 3) == [343, 343, 343]  # two sevenths each; a seventh is free
    assert greedy(4096, 3)[0] > 1024


@given(st.integers(1, 200), st.integers(1, 8))
def test_something_stays_free_however_many_are_greedy(total: int, num_models: int) -> None:
    held = greedy(total, num_models)
    assert sum(held) <= total
    assert max(held) - min(held) <= 1
    if total > WEIGHT * num_models:
        assert may_take(0, total - sum(held))


@given(SCHEDULES, st.integers(1, 40))
def test_no_more_is_taken_than_there_is_and_who_holds_nothing_comes_before_who_holds_much(
    schedule: list[tuple[bool, int]], total: int
) -> None:
    held = dict.fromkeys(range(1, 7), 0)
    shares = Shares()
    for asks, model in schedule:
        free = total - sum(held.values())
        if not asks:
            if held[model]:
                held[model] -= 1
                shares.remove(model, 4096)
        elif shares.has_place(model, free):
            assert shares.has_memory(model, 4096 * free)
            assert all(may_take(each, free) for each in held.values() if each <= held[model])
            held[model] += 1
            shares.add(model, 4096)
        else:
            assert held[model] >= WEIGHT * free
        assert {model: shares.num_requests(model) for model in held} == held
        assert sum(held.values()) <= total


@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_while_most_is_free_no_request_is_refused(total: int, free: int) -> None:
    if least_ample(total) <= free <= total:
        assert may_take(total - free, free)
    elif free <= total:
        assert not may_take(total - free, free)
