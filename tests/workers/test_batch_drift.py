"""batch_drift.py: what two answers differ by, who is chosen, and what a real loop finds out about real models."""

import itertools
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from shoal.messages.to_worker import StopWorker
from shoal.model_config.signature import Signature
from shoal.workers.answers import Answers, RequestOutput
from shoal.workers.backends.backend import Backend
from shoal.workers.batch_drift import (
    IDLE_S,
    MAX_LOAD,
    MAX_WAITING,
    NOT_COMPARABLE,
    BatchDriftAuditor,
    Difference,
    DriftMetrics,
    difference,
)
from shoal.workers.failure_log import failure_fields
from shoal.workers.loop import Loop
from shoal.workers.plans import OutputLayouts
from shoal.workers.requests import Request
from shoal.workers.tensors import Array
from tests.workers.worker_harness import CONFIG, STRINGS, Batcher, PerRequest, Returning, loop_of, rows, strings

FP16, FP32, INT64, BYTES, BF16 = 10, 11, 9, 13, 14


def output(array: Any, wire: int = FP32, dtype: Any = np.float32) -> RequestOutput:
    made = np.asarray(array, dtype)
    return RequestOutput(wire, made.shape, made.tobytes())


class TestDifference:
    def test_equal_bits_do_not_differ_nan_included(self) -> None:
        assert difference({"Y": output([1, np.nan])}, {"Y": output([1, np.nan])}) is None
        assert difference({}, {}) is None

    def test_the_largest_absolute_and_the_largest_relative_need_not_be_of_one_element(self) -> None:
        found = difference({"Y": output([100, 0.5])}, {"Y": output([101, 0.25])})
        assert found == Difference(1.0, 0.5)

    def test_of_several_outputs_the_largest(self) -> None:
        one = {"A": output([1]), "B": output([4], INT64, np.int64)}
        assert difference(one, {"A": output([1]), "B": output([2], INT64, np.int64)}) == Difference(2.0, 0.5)

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (output([1, 2]), output([[1, 2]])),
            (output([1]), output([1], INT64, np.int64)),
            (output([1, np.nan]), output([1, 2])),
            (RequestOutput(BYTES, (1,), strings(b"a")), RequestOutput(BYTES, (1,), strings(b"b"))),
        ],
    )
    def test_what_is_no_number_is_infinitely_far(self, one: RequestOutput, other: RequestOutput) -> None:
        assert difference({"Y": one}, {"Y": other}) == NOT_COMPARABLE

    def test_an_answer_is_infinitely_far_from_none(self) -> None:
        assert difference({"Y": output([1])}, {}) == NOT_COMPARABLE

    def test_infinities(self) -> None:
        assert difference({"Y": output([np.inf, 1])}, {"Y": output([np.inf, 2])}) == Difference(1.0, 0.5)
        assert difference({"Y": output([np.inf])}, {"Y": output([1])}) == NOT_COMPARABLE

    def test_signs_of_zeros_are_bits_and_no_distance(self) -> None:
        assert difference({"Y": output([0.0])}, {"Y": output([-0.0])}) == Difference(0, 0)

    def test_sixteen_bits_of_both_kinds(self) -> None:
        half = [output([value], FP16, np.float16) for value in (1, 1.5)]
        assert difference({"Y": half[0]}, {"Y": half[1]}) == Difference(0.5, 0.5 / 1.5)
        brain = [output([word], BF16, np.uint16) for word in (0x3F80, 0x4000)]  # 1 and 2
        assert difference({"Y": brain[0]}, {"Y": brain[1]}) == Difference(1, 0.5)


class Counts(DriftMetrics):
    """What an auditor has counted."""

    def __init__(self) -> None:
        self.num_audited = self.num_unsteady = self.num_skipped = 0
        self.differences: list[Difference] = []
        names = "num_audited", "num_unsteady", "num_skipped"
        self.audited, self.unsteady, self.skipped = (partial(self._count, name) for name in names)

    def _count(self, name: str) -> None:
        setattr(self, name, getattr(self, name) + 1)

    def changed(self, difference: Difference) -> None:
        self.differences.append(difference)


def audited(
    batcher: Batcher,
    backend: Backend,
    *,
    share: float = 1.0,
    chance: Callable[[], float] = lambda: 0.0,
    config: dict[str, Any] = CONFIG,
) -> tuple[Loop, BatchDriftAuditor, Counts]:
    loop, counts = loop_of(batcher, config, backend), Counts()
    plans = OutputLayouts(Signature.from_config(config))
    loop.auditor = auditor = BatchDriftAuditor(backend, plans, "m_0_0", share, counts, chance)
    return loop, auditor, counts


def send(batcher: Batcher, *values: float, batch: int = 1) -> None:
    batcher.send(*[batcher.request([("INPUT0", "FP32", rows(value))]) for value in values], batch=batch)


def leaning(inputs: dict[str, Array]) -> dict[str, Array]:
    """Subtracts the mean of its batch, as a normalisation that was left in training mode does."""
    array = inputs["INPUT0"]
    return {"OUTPUT0": array - array.mean(axis=0, keepdims=True)}


def test_a_model_that_looks_at_the_rest_of_the_batch_is_found_out(batcher: Batcher) -> None:
    loop, auditor, counts = audited(batcher, Returning(leaning))
    send(batcher, 1, 5)
    loop.step()
    assert [done.outputs["OUTPUT0"][0, 0] for done in batcher.done()] == [-2, 2]
    assert auditor.is_due(time.monotonic_ns())
    auditor.run()  # alone, the first is its own mean
    assert (counts.num_audited, counts.differences) == (1, [Difference(2, 1)])
    assert not auditor.is_due(time.monotonic_ns())
    assert batcher.done() == []


def test_float_sums_differ_by_exactly_what_numpy_makes_of_the_two_shapes(batcher: Batcher) -> None:
    weights = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    values = np.random.default_rng(1).standard_normal((8, 4)).astype(np.float32)
    loop, auditor, counts = audited(batcher, Returning(lambda inputs: {"OUTPUT0": inputs["INPUT0"] @ weights}))
    batcher.send(*[batcher.request([("INPUT0", "FP32", value[None])]) for value in values])
    loop.step()
    auditor.run()
    together, alone = (values @ weights)[0], (values[:1] @ weights)[0]
    gap = np.abs(together.astype(np.float64) - alone).max()
    assert [each.absolute for each in counts.differences] == ([] if np.array_equal(together, alone) else [gap])
    assert counts.num_audited == 1


def test_a_model_that_does_not_look_has_no_drift(batcher: Batcher) -> None:
    loop, auditor, counts = audited(batcher, Returning(lambda inputs: {"OUTPUT0": inputs["INPUT0"] * 2}))
    send(batcher, 1, 5, 3)
    loop.step()
    auditor.run()
    assert (counts.num_audited, counts.differences, counts.num_unsteady) == (1, [], 0)


def test_padding_hides_the_batch_size_from_a_model_that_counts_rows(batcher: Batcher) -> None:
    def counting(inputs: dict[str, Array]) -> dict[str, Array]:
        return {"OUTPUT0": inputs["INPUT0"] * len(inputs["INPUT0"])}

    backend = Returning(counting)
    loop, auditor, counts = audited(batcher, backend)
    for rows_added, answers, num_changed in ((0, [2, 10], 1), (8, [8, 40], 1)):
        backend.pad_batches(rows_added)
        send(batcher, 1, 5)
        loop.step()
        assert [done.outputs["OUTPUT0"].tolist() for done in batcher.done()] == [[[each] * 4] for each in answers]
        auditor.run()
        assert len(counts.differences) == num_changed
    assert counts.num_audited == 2


def test_a_model_that_is_not_steady_alone_says_nothing_about_batching(batcher: Batcher) -> None:
    number = itertools.count()
    loop, auditor, counts = audited(batcher, Returning(lambda inputs: {"OUTPUT0": inputs["INPUT0"] + next(number)}))
    send(batcher, 1, 5)
    loop.step()
    auditor.run()
    assert (counts.num_audited, counts.num_unsteady, counts.differences) == (1, 1, [])


def test_what_fails_alone_is_changed(batcher: Batcher, caplog: pytest.LogCaptureFixture) -> None:
    def sociable(inputs: dict[str, Array]) -> dict[str, Array]:
        if len(inputs["INPUT0"]) == 1:
            raise ValueError("lonely")
        return {"OUTPUT0": inputs["INPUT0"]}

    loop, auditor, counts = audited(batcher, Returning(sociable))
    send(batcher, 1, 5)
    loop.step()
    auditor.run()
    assert counts.differences == [NOT_COMPARABLE]
    assert "fails alone" in caplog.text


def test_a_request_that_fails_alone_is_logged_with_its_batch_and_not_as_part_of_the_load(batcher: Batcher) -> None:
    class Complaining(PerRequest):
        def execute(self, requests: Sequence[Request], answers: Answers) -> None:
            logged.append(failure_fields(requests))
            super().execute(requests, answers)

    logged = list[dict[str, Any]]()
    loop, auditor, _ = audited(batcher, Complaining(leaning))
    send(batcher, 1, 5, batch=7)
    loop.step()
    auditor.run()
    assert logged == [{"stage": "execute", "batch": 7}] * 2


def test_answers_to_single_requests_and_of_strings_are_compared_too(batcher: Batcher) -> None:
    loop, auditor, counts = audited(batcher, PerRequest(leaning))
    batcher.send(*[batcher.request([("INPUT0", "FP32", rows(value))], request_id=str(value)) for value in (1, 2)])
    loop.step()
    auditor.run()
    assert (counts.num_audited, counts.differences) == (1, [])


def test_strings_are_compared_by_their_bytes(batcher: Batcher) -> None:
    def numbering(inputs: dict[str, Array]) -> dict[str, Array]:
        return {"OUTPUT0": np.array([[b"%d of %d" % (1, len(inputs["INPUT0"]))]] * len(inputs["INPUT0"]), object)}

    loop, auditor, counts = audited(batcher, Returning(numbering), config=STRINGS)
    batcher.send(*[batcher.request([("INPUT0", "BYTES", ((1, 1), strings(text)))]) for text in (b"a", b"b")])
    loop.step()
    auditor.run()
    assert counts.differences == [NOT_COMPARABLE]


def test_a_lone_request_is_never_chosen_and_of_a_batch_one_by_chance(batcher: Batcher) -> None:
    drawn: list[float] = []
    loop, auditor, counts = audited(batcher, Returning(leaning), share=0.1, chance=lambda: drawn.pop(0))
    send(batcher, 1)
    loop.step()  # draws nothing
    for number, chance in enumerate((0.2, 0.0, 0.19)):  # two requests at a tenth each: a fifth of the batches
        drawn.append(chance)
        send(batcher, 1 + number, 5 + number, batch=2 + number)
        loop.step()
    assert len(auditor._waiting) == 2
    assert [np.frombuffer(each.block, np.float32)[0] for each in auditor._waiting] == [2, 7]
    assert counts.num_skipped == 0


def test_samples_are_bounded_and_so_is_the_time_of_audits(batcher: Batcher) -> None:
    loop, auditor, counts = audited(batcher, Returning(leaning))
    assert auditor.next_wait_s(None) is None
    assert auditor.next_wait_s(3.0) == 3.0
    for batch in range(MAX_WAITING + 2):
        send(batcher, 1, 5, batch=batch + 1)
        loop.step()
    assert (len(auditor._waiting), counts.num_skipped) == (MAX_WAITING, 2)
    assert auditor.next_wait_s(None) == IDLE_S
    assert auditor.next_wait_s(IDLE_S / 2) == IDLE_S / 2
    start_ns = time.monotonic_ns()
    auditor.run()
    took_ns = auditor._due_ns - start_ns
    assert took_ns > 0
    assert not auditor.is_due(start_ns + int(took_ns * (1 - MAX_LOAD)))
    assert auditor.is_due(auditor._due_ns)


def test_a_request_that_failed_has_no_answer_to_compare(batcher: Batcher) -> None:
    loop, auditor, counts = audited(batcher, PerRequest(leaning))
    batcher.send(*[batcher.request([("INPUT0", "FP32", rows(1))], request_id=each) for each in ("bad", "good")])
    loop.step()
    assert (len(auditor._waiting), counts.num_skipped) == (0, 1)


def test_the_loop_audits_only_while_there_is_nothing_else_to_do(batcher: Batcher) -> None:
    seen: list[int] = []

    def noting(inputs: dict[str, Array]) -> dict[str, Array]:
        seen.append(len(inputs["INPUT0"]))
        if len(seen) == 6:
            batcher.supervisor.send(StopWorker())
        return leaning(inputs)

    loop, _, counts = audited(batcher, Returning(noting))
    send(batcher, 1, 5)
    send(batcher, 2, 6, batch=2)
    loop.run(batcher.worker_channel)
    # Both batches first; then each sample alone, and once more, since its answer has changed.
    assert seen == [2, 2, 1, 1, 1, 1]
    assert (counts.num_audited, len(counts.differences)) == (2, 2)
    assert batcher.worker_view.words[32] == 0  # not busy
