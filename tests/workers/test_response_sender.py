"""Requests that are answered by senders: what the batcher sees of them, from one thread and from several."""

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from shoal.datatypes import BYTES, FP32, INT32
from shoal.errors import InternalError, InvalidArgumentError, UnavailableError
from shoal.messages.to_worker import StopWorker
from shoal.model_config.signature import Signature
from shoal.shm.slab import taken_nbytes
from shoal.workers.answers import Answers
from shoal.workers.plans import OutputLayouts
from shoal.workers.requests import Request
from shoal.workers.response_sender import MAX_OPEN_BATCHES, WINDOW, ResponseSender, WarmupResponseSender
from tests.workers.sending import (
    DONE,
    READY,
    RESCHEDULE,
    RESPONSE,
    SEQUENCE_END,
    Sending,
    heard,
    output,
    rung,
    started,
    value,
)
from tests.workers.worker_harness import CONFIG, PAIR, Batcher, loop_of, rows


def test_responses_follow_the_news_that_the_instance_is_free(batcher: Batcher) -> None:
    (sender,) = started(batcher).senders
    (ready,) = heard(batcher)
    assert ready[:3] == (READY, 0, 1)
    assert 0 < ready[6] <= ready[7] <= ready[8] <= ready[9]
    sender.send(output(5), {"n": 1}, final=False)
    sender.send(output(6), final=False)
    first, second = heard(batcher)
    assert [(each[0], each[1], each[3]) for each in (first, second)] == [(RESPONSE, 1, 0)] * 2
    assert [value(batcher, each) for each in (first, second)] == [5, 6]
    assert batcher._read((7, *first[1:])).parameters == {"n": 1}
    assert first[4] != second[4]
    assert sender.is_open
    sender.send(output(7), final=True)
    (last,) = heard(batcher)
    assert (last[0], value(batcher, last), sender.is_open) == (DONE, 7, False)


def test_a_batch_that_is_answered_in_execute_is_an_ordinary_one(batcher: Batcher) -> None:
    def answer(requests: Sequence[Request], answers: Answers) -> None:
        answers.sender(requests[0]).send(output(5), final=True)

    started(batcher, also=answer)
    (done,) = heard(batcher)
    assert (done[0], value(batcher, done)) == (DONE, 5)


def test_some_requests_have_senders_and_others_do_not(batcher: Batcher) -> None:
    class Half(Sending):
        def execute(self, requests: Sequence[Request], answers: Answers) -> None:
            self.senders.append(answers.sender(requests[1]))
            assert answers.sender(requests[1]) is self.senders[0]
            answers.add_outputs(requests[0], output(5))
            answers.fail(2, InvalidArgumentError("bad"))

    backend = Half()
    loop = loop_of(batcher, CONFIG, backend)
    batcher.send(*[batcher.request([("INPUT0", "FP32", rows(1))]) for _ in range(3)])
    loop.step()
    first, third, ready = heard(batcher)
    assert [(each[0], each[1], each[3]) for each in (first, third)] == [(DONE, 1, 0), (DONE, 3, 4)]
    assert [value(batcher, each) for each in (first, third)] == [5, "bad"]
    assert ready[0] == READY
    backend.senders[0].finish()
    assert [record[:5] for record in heard(batcher)] == [(DONE, 2, 0, 0, 0)]
    assert batcher.results.open(first[4]) is not None


def test_the_end_comes_once(batcher: Batcher) -> None:
    (sender,) = started(batcher).senders
    sender.fail(InternalError("oh"), final=False)
    sender.fail(UnavailableError("no"))
    sender.fail(InternalError("again"))
    sender.finish()
    with pytest.raises(InternalError, match=r"^Unable to send response\. Response sender has been closed\.$"):
        sender.send(output(1), final=False)
    with pytest.raises(InternalError, match=r"^Unable to send response\. Response sender has been closed\.$"):
        sender.reschedule()
    _, part, last = heard(batcher)
    assert [(each[0], each[3], value(batcher, each)) for each in (part, last)] == [(RESPONSE, 2, "oh"), (DONE, 5, "no")]
    assert not sender.is_cancelled


def test_the_end_of_a_sequence_is_reported_before_the_answer(batcher: Batcher) -> None:
    (sender,) = started(batcher).senders
    sender.end_sequence()
    sender.finish()
    sender.end_sequence()  # no effect: the request is answered
    assert [record[:2] for record in heard(batcher)] == [(READY, 0), (SEQUENCE_END, 1), (DONE, 1)]


def test_a_request_goes_back_into_its_queue(batcher: Batcher) -> None:
    (sender,) = started(batcher).senders
    sender.reschedule()
    assert [record[:3] for record in heard(batcher)] == [(READY, 0, 1), (RESCHEDULE, 1, 1)]
    assert not sender.is_open


def test_an_exception_ends_what_senders_have_open(batcher: Batcher) -> None:
    def fail(requests: Sequence[Request], answers: Answers) -> None:
        answers.sender(requests[0]).send(output(5), final=True)
        raise InvalidArgumentError("broken")

    started(batcher, num_requests=2, also=fail)
    records = heard(batcher)
    assert [(each[0], each[1], each[3]) for each in records] == [(DONE, 1, 0), (DONE, 2, 4)]
    assert value(batcher, records[1]) == "broken"
    assert taken_nbytes(batcher.worker_view) == 2 * 4096  # the two that were told of


def test_outputs_go_as_they_are(batcher: Batcher) -> None:
    backend = Sending()
    loop = loop_of(batcher, PAIR, backend)
    batcher.send(
        batcher.request(
            [("INPUT0", "FP32", rows(1)), ("INPUT1", "INT32", np.zeros((1, 2), np.int32))], outputs=["OUTPUT0"]
        )
    )
    loop.step()
    text = np.array(["é", b"\xff"], np.object_)
    backend.senders[0].send(
        [("OUTPUT0", BYTES, text), ("OUTPUT1", INT32, np.zeros(1, np.int32)), ("OTHER", FP32, rows(1))], final=True
    )
    done = batcher._read(heard(batcher)[-1])
    assert done.outputs == {"OUTPUT0": b"\2\0\0\0\xc3\xa9\1\0\0\0\xff"}
    with pytest.raises(InternalError, match="returned output 'OUTPUT0' that is no BYTES tensor"):
        Answers(1, OutputLayouts(Signature.from_config(PAIR))).add_outputs(
            backend.requests[0], [("OUTPUT0", BYTES, np.array(["\ud800"], np.object_))]
        )


# -- what clients do --------------------------------------------------------------------------------------------------


def cancel(batcher: Batcher, key: int) -> None:
    batcher.writer.push((2, key, *[0] * 14))
    batcher.writer.publish()
    batcher.worker_bell.ring()


def test_a_cancelled_request_gets_its_end_and_nothing_else(batcher: Batcher) -> None:
    backend = started(batcher, num_requests=2)
    first, second = backend.senders
    heard(batcher)
    assert not first.is_cancelled
    cancel(batcher, 1)
    assert (first.is_cancelled, second.is_cancelled) == (True, False)
    assert [request.is_cancelled() for request in backend.requests] == [True, False]
    first.send(output(1), final=False)
    first.fail(InternalError("oh"), final=False)
    assert heard(batcher) == []
    first.send(output(1), final=True)
    assert [record[:5] for record in heard(batcher)] == [(DONE, 1, 0, 0, 0)]
    cancel(batcher, 2)
    second.reschedule()
    (last,) = heard(batcher)
    assert (last[0], last[3], value(batcher, last)) == (DONE, 8, "Request was cancelled")


def test_an_execution_that_looks_hears_of_a_cancelled_request(batcher: Batcher) -> None:
    seen: list[bool] = []

    class Looking(Sending):
        def execute(self, requests: Sequence[Request], answers: Answers) -> None:
            seen.append(requests[0].is_cancelled())
            cancel(batcher, requests[0].key)
            seen.append(requests[0].is_cancelled())
            answers.add_outputs(requests[0], output(1))

    loop = loop_of(batcher, CONFIG, Looking())
    for batch in (1, 2):
        batcher.send(batcher.request([("INPUT0", "FP32", rows(1))]), batch=batch)
    assert loop.step() == 2
    assert seen == [False, True, False, True]


def test_what_the_client_gave_is_there(batcher: Batcher) -> None:
    backend = Sending()
    loop = loop_of(batcher, CONFIG, backend)
    ref, span = batcher.request([("INPUT0", "FP32", rows(1))])
    batcher.writer.push((5, 77, 1, ref, span, 1, 0, 1, 0, 3, 250, 1000, 0, 0, 0, 0))
    batcher.writer.publish()
    loop.step()
    (request,) = backend.requests
    assert (request.key, request.priority, request.timeout_us, request.deadline_ns) == (77, 3, 250, 251_000)
    assert (request.correlation_id, request.flags) == (0, 0)


def send_99(sender: ResponseSender) -> None:
    sender.send(output(99), final=False)


def fail_99(sender: ResponseSender) -> None:
    sender.fail(InternalError("99"), final=False)


@pytest.mark.parametrize("send_more", [send_99, fail_99])
def test_a_sender_waits_until_earlier_responses_are_read(
    batcher: Batcher, send_more: Callable[[ResponseSender], None]
) -> None:
    (sender,) = started(batcher).senders
    with ThreadPoolExecutor(1) as pool:
        for number in range(WINDOW):
            sender.send(output(number), final=False)
        _, *responses = heard(batcher)
        assert len(responses) == WINDOW
        batcher.bell.clear()
        waiting = pool.submit(send_more, sender)
        rung(batcher)  # it says that it wants memory
        assert heard(batcher) == []
        batcher.free(responses[3][4])
        waiting.result(timeout=10)
    (late,) = heard(batcher)
    assert value(batcher, late) in (99, "99")


@pytest.mark.parametrize("send_more", [send_99, fail_99])
def test_a_client_that_never_reads_is_given_up(
    make_batcher: Callable[..., Batcher], send_more: Callable[[ResponseSender], None]
) -> None:
    batcher = make_batcher(block_wait_s=0.01)
    (sender,) = started(batcher).senders
    for number in range(WINDOW):
        sender.send(output(number), final=False)
    heard(batcher)
    with pytest.raises(UnavailableError, match="has not read 32 responses of the request for too long"):
        send_more(sender)
    (last,) = heard(batcher)
    assert (last[0], last[3], sender.is_open) == (DONE, 5, False)


# -- the instance -----------------------------------------------------------------------------------------------------


def test_so_many_batches_are_open_and_no_more(make_batcher: Callable[..., Batcher]) -> None:
    batcher = make_batcher(worker=3 << 20, client=8 << 20)
    backend = Sending()
    loop = loop_of(batcher, CONFIG, backend)
    num_ready = 0
    for batch in range(1, MAX_OPEN_BATCHES + 2):
        batcher.send(batcher.request([("INPUT0", "FP32", rows(1))]), batch=batch)
        loop.step()
        num_ready += len(heard(batcher))
    assert num_ready == MAX_OPEN_BATCHES
    backend.senders[5].finish()
    assert [record[:3] for record in heard(batcher)] == [(DONE, 6, 0), (READY, 0, MAX_OPEN_BATCHES + 1)]


def test_stop_waits_for_open_senders(batcher: Batcher) -> None:
    backend = Sending()
    loop = loop_of(batcher, CONFIG, backend)
    batcher.send(batcher.request([("INPUT0", "FP32", rows(1))]))
    batcher.supervisor.send(StopWorker())
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(loop.run, batcher.worker_channel)
        rung(batcher)
        assert [record[0] for record in heard(batcher)] == [READY]
        backend.senders[0].send(output(3), final=False)
        assert not running.done()
        backend.senders[0].finish()
        running.result(timeout=10)
    assert [record[0] for record in heard(batcher)] == [RESPONSE, DONE]


@pytest.mark.stress
def test_many_threads_answer_many_requests(make_batcher: Callable[..., Batcher]) -> None:
    """Six threads send, the loop executes, blocks come back in any order: each stream is whole and nothing is lost."""
    race(make_batcher, num_requests=300, num_threads=6)


def test_threads_answer_requests(make_batcher: Callable[..., Batcher]) -> None:
    race(make_batcher, num_requests=24, num_threads=3)


def race(make_batcher: Callable[..., Batcher], num_requests: int, num_threads: int) -> None:
    batcher = make_batcher(worker=(256 + 1) * 4096, client=4 << 20)
    todo: queue.SimpleQueue[tuple[int, ResponseSender] | None] = queue.SimpleQueue()

    class Threaded(Sending):
        def execute(self, requests: Sequence[Request], answers: Answers) -> None:
            for request in requests:
                todo.put((request.key, answers.sender(request)))

    def work() -> None:
        while (item := todo.get()) is not None:
            key, sender = item
            for number in range(key % 50):
                sender.send(output(1000 * key + number), final=False)
            sender.finish()

    loop = loop_of(batcher, CONFIG, Threaded())
    threads = [threading.Thread(target=work) for _ in range(num_threads)]
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(loop.run, batcher.worker_channel)
        for thread in threads:
            thread.start()
        seen: dict[int, list[float]] = {}
        num_sent = num_done = num_ready = 0
        try:
            while num_done < num_requests or num_ready < num_sent:
                if num_sent < num_requests and num_sent == num_ready:
                    num_sent += 1
                    batcher.send(batcher.request([("INPUT0", "FP32", rows(1))]), batch=num_sent)
                rung(batcher)
                for record in heard(batcher):
                    if record[0] == RESPONSE:
                        seen.setdefault(record[1], []).append(value(batcher, record))
                        batcher.free(record[4])
                    elif record[0] == DONE:
                        num_done += 1
                    # A batch that has ended before execute returned is not said to be ready.
                    if (record[0] == READY and record[2] == num_sent) or (record[0] == DONE and record[1] == num_sent):
                        num_ready = num_sent
        finally:
            for _ in threads:
                todo.put(None)
            batcher.supervisor.send(StopWorker())
        for thread in threads:
            thread.join()
        running.result(timeout=10)
    assert seen == {
        key: [np.float32(1000 * key + number) for number in range(key % 50)]
        for key in range(1, num_requests + 1)
        if key % 50
    }
    assert loop._memory.count()["blocks_acquired"] == loop._memory.count()["blocks_released"]


def test_no_client_gets_a_warm_ups_answers(batcher: Batcher) -> None:
    answers = Answers(2, OutputLayouts(Signature.from_config(CONFIG)))
    sender = answers.sender(started(batcher, num_requests=2).requests[1])
    assert isinstance(sender, WarmupResponseSender)
    sender.send(output(1), final=False)
    assert sender.is_open
    sender.fail(InternalError("oh"))
    assert (sender.is_open, sender.is_cancelled, [str(error) for error in answers.errors]) == (False, False, ["oh"])
    sender.wait()
