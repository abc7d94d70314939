"""frontend/road/thread_turns.py: which requests have a thread, which wait, and for how long."""

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from shoal.frontend.road.thread_turns import ThreadTurns, Turn

FREE = 1 << 20


@dataclass(eq=False)
class Request:
    group: str
    body_nbytes: int = 1
    queued_s: float = 0.0


def asked(turns: ThreadTurns[Request], *models: str) -> list[Request]:
    """A request to each of these models, those that wait included."""
    made = [Request(model) for model in models]
    for each in made:
        assert turns.begin(each, FREE) is not Turn.REFUSED
    return made


def test_a_model_has_its_number_of_threads_and_another_one_is_not_kept_waiting() -> None:
    turns = ThreadTurns[Request](8, 2)
    begun = [turns.begin(Request("slow"), FREE) for _ in range(4)]
    assert begun == [Turn.NOW, Turn.NOW, Turn.LATER, Turn.LATER]
    assert turns.begin(Request("idle"), FREE) is Turn.NOW


def test_a_thread_goes_to_each_model_in_turn() -> None:
    turns = ThreadTurns[Request](1, 1)
    first, *others = asked(turns, "a", "a", "a", "b", "c", "b")
    order = []
    running = first
    for _ in others:
        (running,) = turns.end(running)
        order.append(running.group)
    assert order == ["a", "b", "c", "a", "b"]
    assert turns.end(running) == []


def test_a_later_request_does_not_overtake_an_earlier_one_of_its_model() -> None:
    turns = ThreadTurns[Request](4, 1)
    first, second, third = asked(turns, "a", "a", "a")
    assert turns.end(first) == [second]
    assert turns.end(second) == [third]


def test_what_waits_too_long_leaves_and_the_rest_keeps_its_turn() -> None:
    turns = ThreadTurns[Request](1, 1)
    running, *waiting = (Request(group, queued_s=came_s) for group, came_s in (("a", 1), ("a", 2), ("b", 3), ("a", 4)))
    for each in (running, *waiting):
        turns.begin(each, FREE)
    assert turns.expire(1.5) == []
    assert turns.expire(3.0) == waiting[:2]
    assert turns.end(running) == waiting[2:]
    assert turns.expire(10.0) == []  # it has a thread


def test_a_model_that_has_much_of_the_memory_may_not_keep_more_waiting() -> None:
    turns = ThreadTurns[Request](4, 1)
    assert turns.begin(Request("slow", 60), 40) is Turn.NOW  # it need not wait
    assert turns.begin(Request("slow", 20), 20) is Turn.REFUSED  # 60 of 100 are the model's, 20 are left
    assert turns.begin(Request("other", 5), 15) is Turn.NOW
    assert turns.begin(Request("other", 5), 10) is Turn.LATER
    assert turns.begin(Request("idle", 0), 0) is Turn.NOW


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 2)), max_size=200))
def test_no_schedule_leaves_a_thread_unused_or_gives_one_twice(steps: list[tuple[str, int]]) -> None:
    num_threads, max_per_group = 6, 3
    turns = ThreadTurns[Request](num_threads, max_per_group)
    running: list[Request] = []
    waiting: list[Request] = []
    for now, (group, step) in enumerate(steps):
        if step == 0 and running:
            ended = running.pop(now % len(running))
            begun = turns.end(ended)
            running += begun
            for each in begun:
                waiting.remove(each)
        elif step == 1:
            request = Request(group, queued_s=now)
            (running if turns.begin(request, FREE) is Turn.NOW else waiting).append(request)
        elif step == 2:
            for each in turns.expire(now - 20):
                waiting.remove(each)
        counts = Counter(each.group for each in running)
        assert len(running) <= num_threads
        assert max(counts.values(), default=0) <= max_per_group
        for each in waiting:  # only for want of a thread for its model
            num = counts[each.group]
            assert num == max_per_group or num >= 2 * (num_threads - len(running))
    while running:
        running += turns.end(running.pop())
    assert turns.expire(1e9) == []
