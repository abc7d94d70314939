"""What calls inherit from the requests that they are made for, and that each is answered, whatever goes wrong."""

import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from triton_python_backend_utils import (
    InferenceRequest,
    InferenceResponse,
    Tensor,
    TritonError,
    TritonModelException,
)
from triton_python_backend_utils.tensor import TensorSource

from shoal.control import ADDRESS_VARIABLE
from shoal.datatypes import FP32
from shoal.model_config.signature import Signature
from shoal.request import InferResponse, TensorRef, pack_response
from shoal.shm import layout
from shoal.star.models import ModelEntry, ModelTable
from shoal.workers.backends.python.bls import LEND_NBYTES, NO_PARENTS, BlsCall, Parents
from shoal.workers.backends.python.runtime import WorkerRuntime
from shoal.workers.requests import Request, RequestReader
from tests.client.client_harness import MODEL_ID, WAIT_S, ClientHarness
from tests.frontend.lane_star import config, message
from tests.request_headers import request_header
from tests.scarcity import no_descriptors_left
from tests.workers.worker_harness import CONFIG

SECOND = 1_000_000_000


def parent(
    *,
    accepted_ns: int = 0,
    timeout_us: int = 0,
    deadline_ns: int = 0,
    priority: int = 0,
    is_cancelled: bool = False,
    **parameters: Any,
) -> Request:
    record = layout.record(layout.BATCH_ITEM, 1, 1, 42, 0, 1, 0, 1, 0, priority, timeout_us, accepted_ns, deadline_ns)
    reader = RequestReader(Signature.from_config(CONFIG), lambda _key: is_cancelled)
    body = memoryview(bytes(16))
    return reader.open(0, body, request_header("", [["INPUT0", 11, [1, 4], 0, 16]], [], parameters), record)


def parents(*requests: Request) -> Parents:
    return Parents(requests, can_lend=True, is_watched=True)


def test_without_parents_there_is_the_servers_timeout() -> None:
    assert NO_PARENTS.deadline_ns(5, SECOND) == SECOND + 5
    assert NO_PARENTS.timeout_us(5) == NO_PARENTS.priority() == 0
    assert NO_PARENTS.trace_context() == {}
    assert not NO_PARENTS.are_cancelled()


def test_a_call_ends_before_its_parent_is_given_up() -> None:
    assert parents(parent(accepted_ns=SECOND)).deadline_ns(2 * SECOND, 10 * SECOND) == 10 * SECOND


def test_a_call_has_what_is_left_of_its_parents_time() -> None:
    young, old = parent(accepted_ns=SECOND, timeout_us=3_000_000), parent(accepted_ns=SECOND, timeout_us=1_000_000)
    assert parents(young, old).deadline_ns(2 * SECOND, 10 * SECOND) == 4 * SECOND
    assert parents(young, old).timeout_us(2 * SECOND) == 2_000_000
    assert parents(young, parent()).timeout_us(2 * SECOND) == 0


def test_a_call_is_wanted_for_as_long_as_its_parents_are() -> None:
    young, old = parent(deadline_ns=7 * SECOND), parent(deadline_ns=5 * SECOND)
    assert parents(young, old).answer_by_ns() == 7 * SECOND
    assert parents(young, old).timeout_us(2 * SECOND) == 5_000_000
    assert parents(young, parent(timeout_us=1)).answer_by_ns() == NO_PARENTS.answer_by_ns() == 0
    assert parent(accepted_ns=SECOND, timeout_us=1_000_000, deadline_ns=5 * SECOND).deadline_ns == 2 * SECOND
    assert parent(accepted_ns=SECOND, timeout_us=9_000_000, deadline_ns=5 * SECOND).deadline_ns == 5 * SECOND


def test_a_call_has_the_highest_of_its_parents_priorities() -> None:
    assert parents(parent(priority=3), parent(), parent(priority=2)).priority() == 2


def test_a_call_ends_with_the_last_of_its_parents() -> None:
    assert parents(parent(is_cancelled=True)).are_cancelled()
    assert not parents(parent(is_cancelled=True), parent()).are_cancelled()


def test_the_first_call_of_all_ends_with_its_parents_too() -> None:
    watched: list[bool] = []
    first = Parents([parent(is_cancelled=True)], True, False, lambda: watched.append(True), threading.get_ident())
    assert not first.are_cancelled()
    other = threading.Thread(target=first.begin_call)  # the loop's thread may be anywhere
    other.start()
    other.join()
    assert not first.are_cancelled()
    for _ in range(2):
        first.begin_call()
    assert first.are_cancelled()
    assert watched == [True]


def test_the_span_of_one_parent_is_inherited() -> None:
    traced = parent(traceparent="00-1-2-01", other="x")
    assert parents(traced).trace_context() == {"traceparent": "00-1-2-01"}
    assert parents(traced, traced).trace_context() == {}


def test_the_blocks_of_a_request_are_known() -> None:
    assert parents(parent()).refs == [42]


# -- calls, in a client of a real batcher's exchange ------------------------------------------------------------------


class Around(ClientHarness):
    """A client that knows the model of the exchange, and what its one call was told."""

    def __init__(self) -> None:
        models = ModelTable()
        models.apply(message(MODEL_ID, config("m", 0, ("A", "TYPE_FP32", [-1]))))
        super().__init__(models.lookup("m", None))
        self.client.models = models
        self.told: queue.SimpleQueue[tuple[InferenceResponse | None, bool]] = queue.SimpleQueue()

    def call(self, tensor: Tensor, request_id: str = "") -> BlsCall:
        request = InferenceRequest(request_id, requested_output_names=[], inputs=[tensor], model_name="m")
        return BlsCall(self.client, "caller", request, False, lambda *told: self.told.put(told))

    def next(self) -> InferenceResponse:
        response, is_final = self.told.get(timeout=WAIT_S)
        assert response is not None
        assert is_final
        return response

    def sentence(self) -> str:
        error = self.next().error()
        assert error is not None
        return error.message()


@pytest.fixture
def around() -> Iterator[Around]:
    around = Around()
    yield around
    end = time.monotonic() + WAIT_S
    while around.port.counts["requests_open"] and time.monotonic() < end:
        around.step()  # what was cancelled is answered, too
    assert around.is_all_returned()
    assert around.port.counts["requests_open"] == around.port.slab.num_taken == 0


def test_a_call_that_cannot_be_written_is_answered(around: Around) -> None:
    around.call(Tensor("A", np.zeros(1, np.float32)), request_id="\ud800").attempt()
    assert around.sentence().startswith("Model m - Error when running inference: UnicodeEncodeError: ")


def test_a_response_of_which_no_array_can_be_made_is_an_error(around: Around) -> None:
    around.call(Tensor("A", np.zeros(1, np.float32))).attempt()
    item = around.batch()
    header = pack_response(InferResponse((TensorRef("OUT_A", FP32.wire, (0, 1 << 63), 0, 0),), {}))
    block = around.slab.allocate(len(header))
    assert block is not None
    block.memory[: len(header)] = header
    around.worker.send(layout.DONE, item[layout.B.KEY], item[layout.B.BATCH], 0, block.ref, len(header))
    around.step()
    assert around.sentence().startswith("ValueError: ")


def test_what_a_call_has_lent_stays_lent_while_it_is_sent_again_and_it_can_be_cancelled_then(around: Around) -> None:
    lent = Tensor("A", np.zeros(LEND_NBYTES, np.float32))
    lent._source = TensorSource(42, 0, 4 * LEND_NBYTES, lent)
    again, may_go_on = threading.Event(), threading.Event()
    call = around.call(lent)
    call.attempt()
    lookup = around.client.models.lookup

    def gated(name: str, version: str | None) -> ModelEntry:
        again.set()
        assert may_go_on.wait(WAIT_S)
        return lookup(name, version)

    around.client.models.lookup = gated  # type: ignore[method-assign]  # time stands still between two attempts
    around.client.ask = lambda _verb, _arguments: None  # type: ignore[assignment,method-assign]  # the supervisor has no news
    around.star.exchange.remove_model(MODEL_ID, 1)
    around.step()
    assert again.wait(WAIT_S)
    assert around.port.counts["requests_open"] == 0
    assert around.client.has_lent([42])
    call.cancel()
    may_go_on.set()
    assert around.sentence() == "Request was cancelled"
    assert not around.client.has_lent([42])
    around.step()


def test_a_model_that_cannot_join_is_told_so_and_may_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ADDRESS_VARIABLE, "@shoal-nobody-listens-here")
    runtime, told = WorkerRuntime("caller"), list[tuple[InferenceResponse | None, bool]]()
    request = InferenceRequest(requested_output_names=[], inputs=[], model_name="m")
    for _ in range(2):
        runtime.submit(request, False, lambda *each: told.append(each))()
        ((response, is_final),) = told
        assert response is not None
        error = response.error()
        assert error is not None
        assert (error.code(), is_final) == (TritonError.UNAVAILABLE, True)
        assert error.message().startswith("Model 'caller' cannot call other models now: ")
        told.clear()
    with pytest.raises(TritonModelException, match=r"^Model 'caller' cannot call other models now: "):
        runtime.load_model("m", "", None)


def test_a_model_whose_worker_has_no_descriptor_left_is_told_the_limit_and_the_cure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ADDRESS_VARIABLE, "@shoal-nobody-listens-here")
    told = list[InferenceResponse | None]()
    request = InferenceRequest(requested_output_names=[], inputs=[], model_name="m")
    with no_descriptors_left():
        WorkerRuntime("caller").submit(request, False, lambda response, _is_final: told.append(response))
    (response,) = told
    assert response is not None
    error = response.error()
    assert error is not None
    assert error.code() == TritonError.UNAVAILABLE
    assert error.message() == (
        "Model 'caller' cannot call other models now: no file descriptor is left, a process of the server's may have "
        "3. Raise the limit of open files: LimitNOFILE= of the systemd unit, --ulimit nofile of a container, or "
        "ulimit -n"
    )
