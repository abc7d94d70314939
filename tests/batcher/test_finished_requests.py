"""The slowest and the failed requests of the last minutes: which are kept, for how long, and at what cost."""

import random

import pytest

from shoal.batcher.finished_requests import NUM_KEPT, NUM_WINDOWS, WINDOW_NS, FinishedRequests, recent_of_all
from shoal.errors import InternalError
from shoal.finished_request import FinishedRequest
from shoal.reasons import Reason
from shoal.request import InferRequest, pack_request
from shoal.shm import layout
from shoal.shm.layout import CANCEL, EXECUTION, REPLY, REQUEST, TRACE, B, pack_span
from shoal.shm.slab import Slab
from shoal.timing import Cause, Execution, Points, timing
from tests.batcher.star import BATCHING, CLIENT, HEADER, MODEL, OUTPUT_BLOCK, SINGLE, WORKER, End, Star, answer, ask

SECOND_NS = 1_000_000_000


def request(total_ns: int, end_ns: int, status: int = 0) -> FinishedRequest:
    points = Points(0, end_ns - total_ns, 0, 0, 0, 0, 0, end_ns)
    return FinishedRequest(MODEL, "front end", "", "", 1, points, status, 0, 0, "", None)


class Log:
    """Finished requests, and the number of those that were written down."""

    def __init__(self) -> None:
        self.requests = FinishedRequests()
        self.num_made = 0

    def end(self, total_ns: int, now_ns: int) -> None:
        """As the batcher does when a request is answered."""

        def make() -> FinishedRequest:
            self.num_made += 1
            return request(total_ns, now_ns)

        if total_ns > self.requests.slow_ns:
            self.requests.note_slow(total_ns, now_ns, make)


@pytest.mark.parametrize("seed", range(5))
def test_the_slowest_of_many_is_kept_and_few_are_written_down(seed: int) -> None:
    random_, log = random.Random(seed), Log()
    times = [int(random_.lognormvariate(15, 1)) for _ in range(20_000)]
    for number, total_ns in enumerate(times):
        log.end(total_ns, SECOND_NS + number)
    slowest, failed, others = log.requests.recent(2 * SECOND_NS)
    kept = [each.total_ns for each in slowest]
    assert kept == sorted(kept, reverse=True)
    assert len(kept) == NUM_KEPT
    # whatever is not kept is hardly slower than the least slow one that is
    missed = sorted(times)[-NUM_KEPT:]
    assert all(total_ns in kept or total_ns <= kept[-1] * 17 // 16 for total_ns in missed)
    assert log.num_made < 300
    assert (failed, others) == ([], 0)


def test_a_queue_that_grows_is_not_written_down_whole() -> None:
    log = Log()
    for number in range(100_000):
        log.end(1_000_000 + 10_000 * number, SECOND_NS + number)
    assert log.num_made < 2_000


def test_the_order_is_that_of_the_times_which_are_shown() -> None:
    log = FinishedRequests()
    late = request(100, SECOND_NS)
    late = late._replace(points=late.points._replace(compute_end_ns=SECOND_NS + 50))  # the worker's clock, read later
    for each in (request(120, SECOND_NS), late):
        log.note_slow(SECOND_NS - each.points.start_ns, SECOND_NS, lambda each=each: each)  # type: ignore[misc]
    shown = [timing(each.points).total_ns for each in log.recent(2 * SECOND_NS)[0]]
    assert shown == [150, 120]
    assert [each.total_ns for each in recent_of_all([log], 9, 2 * SECOND_NS)[0]] == shown


def test_requests_are_kept_for_minutes_and_quiet_ones_are_slow_again() -> None:
    log = Log()
    for _ in range(NUM_KEPT + 1):
        log.end(1_000_000_000, SECOND_NS)
    assert log.requests.slow_ns > 1_000_000_000
    log.requests.turn(SECOND_NS + WINDOW_NS)
    log.end(5, SECOND_NS + WINDOW_NS)
    assert [each.total_ns for each in log.requests.recent(SECOND_NS + WINDOW_NS)[0]] == [1_000_000_000] * NUM_KEPT + [5]
    late_ns = SECOND_NS + NUM_WINDOWS * WINDOW_NS
    assert [each.total_ns for each in log.requests.recent(late_ns)[0]] == [5]
    assert log.requests.recent(late_ns + 2 * WINDOW_NS)[0] == []


def test_of_the_failed_the_first_of_each_minute_are_kept_and_the_rest_counted() -> None:
    log, last_ns = Log(), 0
    for window in range(2 * NUM_WINDOWS):
        for number in range(100):
            last_ns = SECOND_NS + window * WINDOW_NS + number
            ended = request(1, last_ns, 2)
            log.requests.note_failed(last_ns, lambda ended=ended: ended)  # type: ignore[misc]
    _, failed, others = log.requests.recent(last_ns)
    assert len(failed) == NUM_WINDOWS * NUM_KEPT
    assert others == NUM_WINDOWS * (100 - NUM_KEPT)
    ends = [each.points.end_ns for each in failed]
    assert ends == sorted(ends, reverse=True)


def test_of_several_models_the_slowest_of_all_are_listed() -> None:
    logs = [Log(), Log()]
    for number in range(10):
        logs[number % 2].end(number, SECOND_NS)
        failed_request = request(0, SECOND_NS + number, 2)
        logs[number % 2].requests.note_failed(SECOND_NS + number, lambda made=failed_request: made)  # type: ignore[misc]
    slowest, failed, others = recent_of_all([log.requests for log in logs], 3, 2 * SECOND_NS)
    assert [each.total_ns for each in slowest] == [9, 8, 7]
    assert [each.points.end_ns - SECOND_NS for each in failed] == [9, 8, 7]
    assert others == 7


# ---------------------------------------------------------------------------------------------------------------
# What the batcher knows of a request


class Known(Star):
    """A star whose client's requests lie in real blocks."""

    def __init__(self, config: dict[str, object]) -> None:
        super().__init__()
        self.model_ = self.add_model(MODEL, config)
        self.client = self.add_client(CLIENT, is_front_end=True)
        self.worker = self.add_worker(WORKER, self.model_)
        self.exchange.workers[WORKER].instance = 4711 << 42
        self._slab = Slab(self.client.own)

    def ask(self, number: int, id_: str, *, now_ns: int, header: bytes = b"", trace: tuple[int, ...] = ()) -> None:
        block = self._slab.allocate(4096)
        assert block is not None
        packed = header or pack_request(InferRequest(id_, (), (), {}))
        block.memory[: len(packed)] = packed
        span = pack_span(0, len(packed))
        self.client.send(REQUEST, number, MODEL, block.ref, span, 1, 0, 0, 0, 0, 0, now_ns - 50)
        if trace:
            self.client.send(TRACE, number, *trace)
        self.exchange.step(now_ns)

    def answer(self, item: tuple[int, ...], *, start_ns: int, now_ns: int, status: int = 0, ref: int = 0) -> None:
        times = start_ns, start_ns + 10, start_ns + 110, start_ns + 115
        self.worker.send(layout.DONE, item[B.KEY], item[B.BATCH], status, ref or OUTPUT_BLOCK, HEADER, *times)
        self.exchange.step(now_ns)


def test_a_slow_request_is_known_by_its_id_its_trace_and_its_batch() -> None:
    star = Known(SINGLE)
    star.ask(1, "first", now_ns=500, trace=(1, 7, 8))
    (item,) = star.worker.received()
    star.answer(item, start_ns=1_000, now_ns=2_000)
    ((slow,), failed, _) = star.model_.finished.recent(2_000)
    assert slow == FinishedRequest(
        MODEL, "front end", "first", f"{7:016x}{8:016x}", 1, Points(0, 450, 500, 1_000, 1_010, 1_110, 1_115, 2_000),
        0, 0, 0, "", Execution(4711 << 42, Cause.FORMING, 500, 0, 1, 1, 0, 0, 0, 0, 0),
    )  # fmt: skip
    assert failed == []
    told, reply = star.client.received()
    assert told[:4] == (EXECUTION, 1, 4711 << 42, Cause.FORMING)
    assert reply[:2] == (REPLY, 1)


def test_who_does_not_ask_for_times_is_sent_none() -> None:
    star = Known(SINGLE)
    star.ask(1, "traced", now_ns=500, trace=(0, 7, 8))
    (item,) = star.worker.received()
    star.answer(item, start_ns=1_000, now_ns=2_000)
    assert [record[0] for record in star.client.received()] == [REPLY]


def test_a_wait_for_a_busy_instance_names_the_batch_ahead() -> None:
    star = Known(SINGLE)
    for number in range(1, 12):  # the instance takes some ahead
        star.ask(number, "", now_ns=500 + number)
    items = star.worker.received()
    now_ns = 1_000
    while items:
        for item in items:
            star.answer(item, start_ns=now_ns, now_ns=now_ns + 200)
            now_ns += 1_000
        items = star.worker.received()
    *_, last = star.model_.finished.recent(now_ns)[0][::-1][-2:]
    told = timing(last.points, last.execution)
    assert told.ahead_requests == 1
    assert told.ahead_ns == 115
    assert told.queue["busy"] > told.queue.get("wake", 0)


def test_a_batch_that_has_formed_for_long_says_so() -> None:
    delayed = {**BATCHING, "dynamic_batching": {**BATCHING["dynamic_batching"], "max_queue_delay_microseconds": 1}}  # type: ignore[dict-item]
    star = Known(delayed)
    star.ask(1, "", now_ns=10_000)
    assert star.worker.received() == []
    star.exchange.step(11_000)
    (item,) = star.worker.received()
    star.answer(item, start_ns=11_500, now_ns=12_000)
    (slow,) = star.model_.finished.recent(12_000)[0]
    assert timing(slow.points, slow.execution).queue == {"forming": 1_000, "wake": 500}


def test_who_was_overtaken_by_a_higher_priority_is_told() -> None:
    star = Known(SINGLE)
    star.model_.latest_ns = {1: 900, 2: 100}
    star.client.send(REQUEST, 1, MODEL, 0, 0, 1, 0, 2, 0, 0, 0, 50)
    star.exchange.step(500)
    (item,) = star.worker.received()
    star.answer(item, start_ns=1_000, now_ns=2_000)
    (slow,) = star.model_.finished.recent(2_000)[0]
    assert slow.execution is not None
    assert slow.execution.is_overtaken == 1
    assert star.model_.latest_ns == {1: 900, 2: 500}


def test_a_failure_says_what_the_worker_said_or_why_the_batcher_refused() -> None:
    star = Known(SINGLE)
    own = Slab(star.worker.own)
    said = own.allocate(4096)
    assert said is not None
    said.memory[:11] = b"it is wrong"
    star.ask(1, "wrong", now_ns=500)
    (item,) = star.worker.received()
    times = 1_000, 1_010, 1_110, 1_115
    star.worker.send(layout.DONE, item[B.KEY], item[B.BATCH], 2, said.ref, pack_span(0, 11), *times)
    star.exchange.step(2_000)
    star.exchange.remove_worker(WORKER, 2_500)
    star.ask(2, "left", now_ns=3_000)
    star.client.send(CANCEL, 2)
    star.exchange.step(4_000)
    slowest, (cancelled, wrong), others = star.model_.finished.recent(5_000)
    assert (slowest, others) == ([], 0)
    assert (wrong.id, wrong.status, wrong.reason, wrong.sentence) == ("wrong", 2, 0, "it is wrong")
    assert wrong.execution is not None
    assert (cancelled.id, cancelled.status, cancelled.reason) == ("left", InternalError.wire, Reason.CANCELLED)
    assert (cancelled.execution, cancelled.points) == (None, Points(0, 2_950, 3_000, 0, 0, 0, 0, 4_000))


@pytest.mark.parametrize("header", [b"\xff" * 40, b"\0\0\0\0\x93", b"\4\0\0\0abcd\xc1"])
def test_a_damaged_header_has_no_id(header: bytes) -> None:
    star = Known(SINGLE)
    star.ask(1, "", now_ns=500, header=header)
    (item,) = star.worker.received()
    star.answer(item, start_ns=1_000, now_ns=2_000)
    assert [each.id for each in star.model_.finished.recent(2_000)[0]] == [""]


def test_a_client_that_asks_from_blocks_of_others_has_no_id() -> None:
    star = Star()
    model = star.add_model(MODEL, SINGLE)
    client, worker = star.add_client(CLIENT, is_guest=True), star.add_worker(WORKER, model)
    assert isinstance(client, End)
    ask(client, 1)
    star.exchange.step(500)
    (item,) = worker.received()
    answer(worker, item)
    star.exchange.step(2_000)
    assert [(each.asker, each.id) for each in model.finished.recent(2_000)[0]] == [("client", "")]


def test_what_crosses_to_the_supervisor_comes_back_whole() -> None:
    execution = Execution(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0)
    one = FinishedRequest(5, "client", "a", "b", 1, Points(0, 1, 2, 3, 4, 5, 6, 7), 2, 3, 4, "said", execution)
    for each in (one, one._replace(execution=None)):
        plain = [list(value) if isinstance(value, tuple) else value for value in each]
        assert FinishedRequest.from_message(plain) == each
