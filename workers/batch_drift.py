"""Batch drift: how often, and by how much, a request's answer is changed by the other requests of its batch.

A sample of the requests that were executed with others, at most one of a batch, is executed once more, alone, while the
instance has nothing else to do, and the two answers are compared. Where they differ, the request runs alone a second
time: a model that answers the same request alone in two ways is unsteady, and its answers say nothing about batching.
Batch drift is measured for a model with `batch_drift_share` (shoal/model_config/determinism.py); workers of other
models do not import this file. Runs in a worker.
"""

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import isfinite
from typing import NamedTuple

import numpy as np

from shoal.datatypes import BY_WIRE, BYTES
from shoal.distances import as_numbers, distances
from shoal.request import InferOptions
from shoal.shm.layout import BATCH_ITEM, record
from shoal.workers.answers import Answers, RequestOutput
from shoal.workers.backends.backend import Backend
from shoal.workers.plans import OutputLayouts
from shoal.workers.requests import ParsedRequest, Request

_log = logging.getLogger(__name__)

#: The most samples that wait for an idle instance, and the most bytes that their inputs and answers have (ours).
MAX_WAITING, MAX_BYTES = 8, 32 << 20
#: Seconds without a batch after which an instance counts as idle (ours). Under load, the time between two batches is
#: well below a millisecond.
IDLE_S = 0.01
#: The share of an instance's time that audits may take at most (ours).
MAX_LOAD = 0.05
#: The upper bounds of the histograms' buckets: FP32 has 24 significant bits, so a value's last bit is 6e-8 of the
#: value.
BOUNDS = (1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0)


class Difference(NamedTuple):
    """The largest absolute and relative difference between the elements of two answers; infinite where the answers
    differ in more than numbers: in a shape, in a string, by infinity or NaN in only one, or where one of the two is an
    error."""

    absolute: float
    relative: float


NOT_COMPARABLE = Difference(float("inf"), float("inf"))
#: A request's outputs by name.
RequestAnswer = Mapping[str, RequestOutput]


def difference(one: RequestAnswer, other: RequestAnswer) -> Difference | None:
    """How far two answers to one request differ; None if they are equal bit for bit."""
    if one == other:
        return None
    if one.keys() != other.keys():
        return NOT_COMPARABLE
    absolute = relative = 0.0
    for name, output in one.items():
        if output == other[name]:
            continue
        found = _between(output, other[name])
        absolute, relative = max(absolute, found.absolute), max(relative, found.relative)
    return Difference(absolute, relative)


def _between(one: RequestOutput, other: RequestOutput) -> Difference:
    datatype = BY_WIRE[one.datatype]
    if (one.datatype, one.shape) != (other.datatype, other.shape) or datatype is BYTES:
        return NOT_COMPARABLE
    first, second = (as_numbers(np.frombuffer(each.data, datatype.dtype), datatype) for each in (one, other))
    found = distances(first, second)
    return Difference(found.max_absolute, found.max_relative)


class DriftMetrics:
    """The results of audits as metrics of the model, which the supervisor adds up over the model's instances."""

    def __init__(self, model: str, version: int) -> None:
        # Imported here, since the import makes this a process that reports metrics of its model.
        from triton_python_backend_utils.metrics import MetricFamily

        labels = {"model": model, "version": str(version)}
        counter, histogram = MetricFamily.COUNTER, MetricFamily.HISTOGRAM
        families = [
            MetricFamily(f"shoal_batch_drift_{name}", text, kind)
            for name, text, kind in (
                ("audited_total", "Requests of batches that were executed once more, alone, to compare", counter),
                ("changed_total", "Requests whose answer the rest of the batch has changed", counter),
                ("unsteady_total", "Requests that the model answered in two ways though they were alone", counter),
                ("skipped_total", "Chosen requests that could not be kept until an idle time, or compared", counter),
                ("absolute", "Largest absolute difference of an element in a changed answer", histogram),
                ("relative", "Largest relative difference of an element in a changed answer", histogram),
            )
        ]
        self._families = families  # kept, since metrics end when their family is deleted
        #: Functions that count one request each: a request executed alone and compared; one changed by its batch; one
        #: that was answered alone in two ways; one that was chosen but could not be kept or compared.
        self.audited, self._changed, self.unsteady, self.skipped = (
            partial(family.Metric(labels).increment, 1) for family in families[:4]
        )
        self._absolute, self._relative = (
            family.Metric(labels, buckets=list(BOUNDS)).observe for family in families[4:]
        )

    def changed(self, difference: Difference) -> None:
        """Count a request whose answer the rest of its batch has changed."""
        self._changed()
        if isfinite(difference.absolute):
            self._absolute(difference.absolute)
            self._relative(difference.relative)


class _Sample(NamedTuple):
    """A request as it came, in the auditor's own memory, and the answer that it got in its batch."""

    parsed: ParsedRequest
    options: InferOptions
    batch: int  # the batch's number
    block: bytes
    answer: RequestAnswer
    nbytes: int


class BatchDriftAuditor:
    """The auditor of one instance: chooses requests, and executes them again when the loop has nothing to do."""

    def __init__(
        self,
        backend: Backend,
        plans: OutputLayouts,
        instance: str,
        share: float,
        counts: DriftMetrics,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`share` is the share of the requests in batches of several that are to be chosen; `chance` returns random
        numbers from 0 to below 1."""
        self._backend = backend
        self._plans = plans
        self._instance = instance
        self._share = share
        self._counts = counts
        self._chance = chance
        # These fields are changed by note and run.
        self._waiting = deque[_Sample]()
        self._nbytes = 0
        self._due_ns = 0
        self._has_warned = False

    def note(self, requests: Sequence[Request], answers: Answers) -> None:
        """Choose one request of an executed batch, or none, before the batch's answers are written, and copy it with
        its answer. Raises nothing, so that a failure here does not touch the batch's answers."""
        if len(requests) < 2:
            return
        drawn = self._chance() / min(1.0, self._share * len(requests))
        if drawn >= 1:
            return
        try:
            self._keep(requests[int(drawn * len(requests))], answers)
        except Exception:  # noqa: BLE001 - see above
            self._counts.skipped()
            self._warn("a request could not be kept to be executed again")

    def _keep(self, request: Request, answers: Answers) -> None:
        parsed = request.parsed
        answer = None if parsed.lent else answers.outputs_of(request.position)
        if answer is None:  # it failed, a response sender answers it, or inputs lie outside of its block
            self._counts.skipped()
            return
        nbytes = parsed.end + sum([len(output.data) for output in answer.values()])
        if len(self._waiting) >= MAX_WAITING or self._nbytes + nbytes > MAX_BYTES:
            self._counts.skipped()
            return
        block = bytes(request.block[: parsed.end])
        self._waiting.append(_Sample(parsed, request.options, request.batch, block, answer, nbytes))
        self._nbytes += nbytes

    def next_wait_s(self, wait_s: float | None) -> float | None:
        """How long (s, None: without end) the worker's loop may sleep before it calls `is_due`: at most `wait_s`, and
        shorter if a sample waits."""
        if not self._waiting:
            return wait_s
        mine_s = max(IDLE_S, (self._due_ns - time.monotonic_ns()) / 1e9)
        return mine_s if wait_s is None else min(wait_s, mine_s)

    def is_due(self, now_ns: int) -> bool:
        """Whether a sample waits, and may be executed now without exceeding audits' share of the time (MAX_LOAD)."""
        return bool(self._waiting) and now_ns >= self._due_ns

    def run(self) -> None:
        """Execute the oldest sample alone, and compare its two answers. Raises nothing, so that the instance goes
        on."""
        start_ns = time.monotonic_ns()
        sample = self._waiting.popleft()
        self._nbytes -= sample.nbytes
        try:
            self._compare(sample)
        except Exception:  # noqa: BLE001 - see above
            self._counts.skipped()
            self._warn("an answer could not be compared")
        end_ns = time.monotonic_ns()
        self._due_ns = end_ns + int((end_ns - start_ns) * (1 / MAX_LOAD - 1))

    def _compare(self, sample: _Sample) -> None:
        alone = self._answer(sample)
        found = difference(sample.answer, alone)
        is_steady = found is None or difference(alone, self._answer(sample)) is None
        self._counts.audited()
        if not is_steady:
            self._counts.unsteady()
        elif found is not None:
            self._counts.changed(found)

    def _answer(self, sample: _Sample) -> RequestAnswer:
        """The answer to a sample that is executed alone; an empty one if that fails. Like a warm-up's, the request has
        no key, no deadline and no client; a failure is logged with the number of the batch that the sample is from."""
        block = memoryview(sample.block)
        parsed = sample.parsed
        tensors = None if parsed.is_plain else parsed.open_here(block)
        item = record(BATCH_ITEM, 0, sample.batch)
        request = Request(0, parsed, block, tensors, item, lambda _key: False, sample.options)
        answers = Answers(1, self._plans)
        try:
            self._backend.execute([request], answers)
            answers.wait_for_senders()
            return answers.outputs_of(0) or {}
        except Exception:  # noqa: BLE001 - whatever a model raises when it is asked alone
            self._warn("a request that was answered in a batch fails alone, which counts as changed by the batch")
            return {}

    def _warn(self, what: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning("instance '%s': %s; further failures are not logged", self._instance, what, exc_info=True)
