"""Where the time of a request went: phases and parts of a wait from times by hand, and the header and back."""

import pytest

from shoal.timing import (
    Cause,
    Execution,
    Points,
    Timing,
    as_header,
    in_words,
    steps_of,
    timing,
    trace_id_of,
    wants_timing,
)
from tests.server_timing import from_header

INSTANCE = 4711 << 42 | 1 << 34 | 3 << 26
POINTS = Points(50, 100, 200, 1_000, 1_010, 1_110, 1_115, 1_200)


def executed(**more: int) -> Execution:
    words = {
        "instance": INSTANCE, "cause": Cause.FORMING, "formed_ns": 700, "free_ns": 0, "rows": 8, "requests": 3,
        "ahead_rows": 0, "ahead_requests": 0, "ahead_start_ns": 0, "ahead_end_ns": 0, "is_overtaken": 0,
    }  # fmt: skip
    return Execution(**{**words, **more})


def test_the_phases_add_up_to_the_whole() -> None:
    told = timing(POINTS, executed(), groups=("a", "b"), version="2")
    assert told.phases == {
        "receive": 50, "parse": 100, "queue": 800, "gather": 10, "compute": 100, "write": 5, "send": 85,
    }  # fmt: skip
    assert sum(told.phases.values()) == told.total_ns == 1_150
    assert (told.batch_requests, told.batch_rows, told.instance, told.pid, told.version) == (3, 8, "b_3", 4711, "2")


@pytest.mark.parametrize(
    ("execution", "parts"),
    [
        (executed(), {"forming": 500, "wake": 300}),
        (executed(cause=Cause.LIMIT), {"limit": 500, "wake": 300}),
        (executed(cause=Cause.SEQUENCE, formed_ns=900), {"sequence": 700, "wake": 100}),
        (executed(free_ns=600), {"busy": 400, "forming": 100, "wake": 300}),
        (executed(free_ns=700), {"busy": 500, "wake": 300}),
        # given to an instance that was still executing the batch ahead
        (executed(formed_ns=200, ahead_end_ns=990, ahead_requests=2), {"busy": 790, "wake": 10}),
        (executed(formed_ns=200, ahead_end_ns=5_000), {"busy": 800}),
        (executed(formed_ns=200, ahead_end_ns=150), {"wake": 800}),
        # a batcher's clock that is read once for a pass
        (executed(formed_ns=150, free_ns=10_000), {"wake": 800}),
        (executed(formed_ns=9_000, cause=77), {"forming": 800}),
    ],
)
def test_the_parts_of_a_wait_add_up_to_it(execution: Execution, parts: dict[str, int]) -> None:
    told = timing(POINTS, execution)
    assert told.queue == parts
    assert sum(told.queue.values()) == told.phases["queue"]


def test_the_batch_ahead_is_told_only_where_it_was_waited_for() -> None:
    ahead = executed(ahead_rows=4, ahead_requests=2, ahead_start_ns=120, ahead_end_ns=650, is_overtaken=1)
    told = timing(POINTS, ahead)
    assert (told.ahead_requests, told.ahead_rows, told.ahead_ns, told.is_overtaken) == (2, 4, 530, True)
    assert timing(POINTS, ahead._replace(ahead_end_ns=200)).ahead_requests == 0


def test_without_an_instance_the_rest_is_the_wait() -> None:
    refused = timing(Points(0, 100, 200, 0, 0, 0, 0, 900))
    assert (refused.phases, refused.total_ns) == ({"parse": 100, "queue": 700}, 800)
    never_accepted = timing(Points(50, 100, 0, 0, 0, 0, 0, 900))
    assert never_accepted.phases == {"receive": 50, "parse": 800}
    ensemble = timing(Points(0, 100, 200, 0, 0, 0, 0, 900), steps=[("a", 300), ("b", 350)])
    assert (ensemble.phases, ensemble.steps) == ({"parse": 100, "steps": 700}, [("a", 300), ("b", 350)])


def test_times_that_go_back_are_raised() -> None:
    told = timing(Points(0, 300, 200, 250, 240, 400, 350, 380))
    assert told.phases == {"parse": 0, "queue": 0, "gather": 0, "compute": 100, "write": 0, "send": 0}
    assert told.total_ns == 100


def test_a_header_says_all_of_it_and_is_read_back() -> None:
    ahead = executed(ahead_rows=4, ahead_requests=2, ahead_start_ns=120, ahead_end_ns=650, is_overtaken=1)
    told = timing(POINTS, ahead, groups=("a", "b"), version="2", steps=(("resize", 12_000), ("infer", 7)))
    header = as_header(told)
    assert "queue;dur=0.000800" in header
    assert 'ahead;desc="2 requests, 4 rows";dur=0.000530' in header
    assert from_header(header) == told


def test_a_header_is_one_line_of_ascii_whatever_a_model_is_called() -> None:
    steps = [('a"b\\c\r\nX: 1', 5), ("é", 6), *[("x" * 200, 1)] * 100]
    header = as_header(Timing({}, {}, 7, instance='"; x', steps=steps))
    assert header.isascii()
    assert header.isprintable()
    assert 'step;desc="a?b?c??X: 1";dur=0.000005, step;desc="?";dur=0.000006' in header
    assert header.count("step;") == 32


@pytest.mark.parametrize(
    ("value", "asks"), [("1", True), ("true", True), (" 0 ", False), ("false", False), ("", False)]
)
def test_who_asks(value: str, asks: bool) -> None:
    assert wants_timing({"x-shoal-timing": value}) is asks
    assert not wants_timing({})


def test_a_traces_id_is_read_from_its_context() -> None:
    context = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    found = trace_id_of({"traceparent": context})
    assert f"{found:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert in_words(found) == (0x0AF7651916CD43DD, 0x8448EB211C80319C)
    for broken in ("", "00-xyz-b7ad6b7169203331-01", f"00-{'g' * 32}-b-01", "00-12-34-56"):
        assert trace_id_of({"traceparent": broken}) == 0


def test_steps_come_in_the_order_of_their_beginnings() -> None:
    assert steps_of([("b", 20, 25), ("a", 10, 18), ("c", 30, 29)]) == [("a", 8), ("b", 5), ("c", 0)]
