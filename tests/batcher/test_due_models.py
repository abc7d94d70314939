"""When models are due: always the earliest time that holds, and each model once."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.batcher.dispatch import DueModels


@given(st.lists(st.tuples(st.sampled_from(["set", "set", "forget", "take"]), st.integers(0, 4), st.integers(1, 50))))
def test_the_earliest_is_known_whatever_was_said_before(steps: list[tuple[str, int, int]]) -> None:
    due, known = DueModels(), dict[int, int]()
    for name, model, time_ns in steps:
        if name == "set":
            due.set(model, time_ns)
            known[model] = time_ns
        elif name == "forget":
            due.forget(model)
            known.pop(model, None)
        else:
            taken = due.take(time_ns)
            assert taken == sorted(taken, key=lambda each: (known[each], each))
            assert set(taken) == {each for each, due_ns in known.items() if due_ns <= time_ns}
            known = {each: due_ns for each, due_ns in known.items() if due_ns > time_ns}
        assert due.due_ns == known
        assert due.next_ns() == min(known.values(), default=None)


def test_times_that_were_replaced_do_not_gather() -> None:
    due = DueModels()
    due.set(1, 5)
    for time_ns in range(10_000):
        due.set(2, 10**6 - time_ns % 1000)
    assert len(due._heap) < 100
    assert due.next_ns() == 5
