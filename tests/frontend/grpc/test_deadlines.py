"""Deadlines: each call that is still there is told once, in time, and none that has ended is kept."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shoal.frontend.grpc.deadlines import Deadlines


class Connection:
    """What deadlines look at."""

    def __init__(self) -> None:
        self.calls: dict[int, Any] = {}


class Waiting:
    """A call that notes when it is told."""

    def __init__(self) -> None:
        self.told: list[float] = []

    def expire(self, now_s: float) -> None:
        self.told.append(now_s)


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=30), st.lists(st.floats(0, 120), max_size=20))
def test_each_call_that_waits_is_told_once_in_time(wanted: list[tuple[float, bool]], looks: list[float]) -> None:
    deadlines, connection = Deadlines(), Connection()
    calls = []
    for stream_id, (at_s, ends) in enumerate(wanted):
        call = Waiting()
        connection.calls[stream_id] = call
        deadlines.add(at_s, connection, stream_id, call)  # type: ignore[arg-type]
        calls.append((at_s, ends, call))
    for stream_id, (_, ends, _) in enumerate(calls):
        if ends:
            del connection.calls[stream_id]
    deadlines.forget_ended()
    assert len(deadlines) == sum(not ends for _, ends, _ in calls)
    for now_s in sorted(looks):
        patience_s = deadlines.expire(now_s, 0.5)
        left = [at_s - now_s for at_s, ends, call in calls if not ends and not call.told]
        assert patience_s == min([0.5, *left])
    last = max(looks, default=-1.0)
    for at_s, ends, call in calls:
        due = [now_s for now_s in sorted(looks) if now_s >= at_s]
        assert call.told == ([] if ends or at_s > last else due[:1])
