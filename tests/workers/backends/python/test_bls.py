"""What calls inherit from the requests that they are made for."""

from typing import Any

from shoal.model_config.signature import Signature
from shoal.shm import layout
from shoal.workers.backends.python.bls import NO_PARENTS, Parents
from shoal.workers.requests import Request, RequestReader
from tests.workers.surroundings import CONFIG
from tests.workers.test_requests import header

SECOND = 1_000_000_000


def parent(
    *, accepted_ns: int = 0, timeout_us: int = 0, priority: int = 0, is_cancelled: bool = False, **parameters: Any
) -> Request:
    record = layout.record(layout.BATCH_ITEM, 1, 1, 42, 0, 1, 0, 1, 0, priority, timeout_us, accepted_ns)
    reader = RequestReader(Signature.from_config(CONFIG), lambda _key: is_cancelled)
    body = memoryview(bytes(16))
    return reader.open(0, body, header("", [["INPUT0", 11, [1, 4], 0, 16]], [], parameters), record)


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


def test_a_call_has_the_highest_of_its_parents_priorities() -> None:
    assert parents(parent(priority=3), parent(), parent(priority=2)).priority() == 2


def test_a_call_ends_with_the_last_of_its_parents() -> None:
    assert parents(parent(is_cancelled=True)).are_cancelled()
    assert not parents(parent(is_cancelled=True), parent()).are_cancelled()


def test_the_span_of_one_parent_is_inherited() -> None:
    traced = parent(traceparent="00-1-2-01", other="x")
    assert parents(traced).trace_context() == {"traceparent": "00-1-2-01"}
    assert parents(traced, traced).trace_context() == {}


def test_the_blocks_of_a_request_are_known() -> None:
    assert parents(parent()).refs == [42]
