"""What the schedulers make of requests that really arrive, told by `batch_stats`: executions by their number of rows.

Whatever must queue up is sent while the model's only instance is held by full batches, which nothing can join: its
process is stopped by a signal, so that no time limit is involved. Every answer carries its request's number.
"""

import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.end_to_end.asking import infer
from tests.end_to_end.figures import statistics, wait_for_pending
from tests.end_to_end.lifecycle import loaded
from tests.end_to_end.repositories import add_model
from tests.end_to_end.server import DEADLINE_S, Server, signal_worker
from tests.workers.ragged_models import save_summing

MAX_ROWS = 8

#: Name → scheduling, execution time. What else a policy may be is tested in tests/batcher/scheduling.
MODELS = {
    "quick": ("", 0),
    "alone": ("", 20),
    "full": ("dynamic_batching { }", 0),
    "patient": ("dynamic_batching { max_queue_delay_microseconds: 60000000 }", 0),
    "picky": ("dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 60000000 }", 0),
    "punctual": ("dynamic_batching { max_queue_delay_microseconds: 50000 }", 0),
}


#: The delay is a minute: only four requests together are executed before.
RAGGED = """
backend: "onnxruntime"
max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "SUM" data_type: TYPE_FP32 dims: [ 1 ] } ]
batch_input {
  kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO
  target_name: "ENDS"
  data_type: TYPE_INT32
  source_input: "X"
}
batch_output { target_name: "Y" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "X" }
instance_group { count: 1 kind: KIND_CPU }
dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 60000000 }
"""


@pytest.fixture(scope="module")
def server(explicit: Server, shared: Path) -> Iterator[Server]:
    for name, (scheduling, delay_ms) in MODELS.items():
        add_model(
            shared,
            name,
            f"""
            backend: "identity"
            max_batch_size: {MAX_ROWS}
            input {{ name: "INPUT0" data_type: TYPE_INT32 dims: [ 4 ] }}
            output {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 4 ] }}
            instance_group {{ count: 1 kind: KIND_CPU }}
            parameters {{ key: "execute_delay_ms" value {{ string_value: "{delay_ms}" }} }}
            {scheduling}
            """,
        )
    save_summing(add_model(shared, "ragged", RAGGED) / "model.onnx")
    with loaded(explicit, *MODELS, "ragged") as running:
        yield running


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads enough for all requests of a test at once."""
    with ThreadPoolExecutor(24) as threads:
        yield threads


def ask(server: Server, model: str, number: int, rows: int = 1) -> bool:
    """One request over a connection of its own; whether its answer is its own."""
    array = np.full((rows, 4), number, np.int32)
    return np.array_equal(infer(server, model, {"INPUT0": array}, request_id=str(number))["OUTPUT0"], array)


def batches(server: Server, model: str) -> dict[int, int]:
    """Executions by their rows."""
    found = statistics(server, model)
    counts = {row["batch_size"]: row["compute_infer"]["count"] for row in found["batch_stats"]}
    assert sum(counts.values()) == found["execution_count"]
    assert sum(rows * count for rows, count in counts.items()) == found["inference_count"]
    return counts


def hold(server: Server, pool: ThreadPoolExecutor, model: str) -> list["Future[bool]"]:
    """Two full batches: when this returns, a stopped instance has one and the other waits."""
    signal_worker(server, model, signal.SIGSTOP)
    held = [pool.submit(ask, server, model, number, MAX_ROWS) for number in (101, 102)]
    wait_for_pending(server, model, 1)
    # That one may have been seen in the instant before it was dispatched. An answer of another model has gone through
    # the batcher since: now it is with the instance, and one that is pending is the other.
    assert ask(server, "quick", 0)
    wait_for_pending(server, model, 1)
    return held


def queue_up(server: Server, pool: ThreadPoolExecutor, model: str, count: int) -> list["Future[bool]"]:
    """So many requests of one row, accepted in this order behind the one that `hold` left waiting."""
    sent = []
    for number in range(count):
        sent.append(pool.submit(ask, server, model, number))
        wait_for_pending(server, model, 2 + number)
    return sent


def let_go(server: Server, model: str, answers: Sequence["Future[bool]"]) -> bool:
    """The instance goes on; whether all answers are right."""
    signal_worker(server, model, signal.SIGCONT)
    return all_right(answers)


def all_right(answers: Sequence["Future[bool]"]) -> bool:
    return all(answer.result(DEADLINE_S) for answer in answers)


def test_default_scheduler_never_merges(server: Server, pool: ThreadPoolExecutor) -> None:
    assert all_right([pool.submit(ask, server, "alone", number, 1 + number % 2) for number in range(12)])
    assert batches(server, "alone") == {1: 6, 2: 6}


def test_what_queues_up_is_merged_up_to_the_largest_batch(server: Server, pool: ThreadPoolExecutor) -> None:
    held = hold(server, pool, "full")
    sent = queue_up(server, pool, "full", 11)
    assert let_go(server, "full", held + sent)
    assert batches(server, "full") == {8: 3, 3: 1}


def test_delay_waits_for_the_preferred_size(server: Server, pool: ThreadPoolExecutor) -> None:
    """The delay is a minute: only the size can have sent these."""
    assert all_right([pool.submit(ask, server, "patient", number) for number in range(8)])
    assert batches(server, "patient") == {8: 1}
    for count in (1, 2):
        assert all_right([pool.submit(ask, server, "picky", number) for number in range(4)])
        assert batches(server, "picky") == {4: count}


def test_delay_ends_the_wait(server: Server) -> None:
    assert ask(server, "punctual", 1, rows=3)
    assert batches(server, "punctual") == {3: 1}
    assert statistics(server, "punctual")["inference_stats"]["queue"]["ns"] >= 50_000_000


def test_ragged_requests_are_merged_and_each_gets_its_own(server: Server, pool: ThreadPoolExecutor) -> None:
    def ask_sum(length: int) -> list[list[list[float]]]:
        answer = infer(server, "ragged", {"X": np.arange(length, dtype=np.float32)[None]})
        return [answer[name].tolist() for name in ("Y", "SUM")]

    lengths = (3, 1, 7, 2)
    answers = [pool.submit(ask_sum, length) for length in lengths]
    for length, answer in zip(lengths, answers, strict=True):
        assert answer.result(DEADLINE_S) == [[list(range(length))], [[sum(range(length))]]]
    assert batches(server, "ragged") == {4: 1}
