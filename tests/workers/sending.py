"""A response sender whose batcher is the test: what is sent, and what the batcher receives."""

import select
from collections.abc import Callable, Sequence
from typing import Any

from shoal.datatypes import FP32
from shoal.model_config.autocomplete import ModelIO
from shoal.workers.answers import Answers
from shoal.workers.backends.backend import Backend, BackendModel, Device
from shoal.workers.requests import Request
from shoal.workers.response_sender import ResponseSender
from shoal.workers.tensors import Output
from tests.workers.worker_harness import CONFIG, Batcher, loop_of, rows

DONE, RESPONSE, READY, RESCHEDULE, SEQUENCE_END = 7, 12, 13, 14, 18


class Sending(Backend):
    """Leaves its requests to senders, which the test uses; `also` happens in execute."""

    def __init__(self, also: Callable[[Sequence[Request], Answers], None] | None = None) -> None:
        self.senders: list[ResponseSender] = []
        self.requests: list[Request] = []
        self._also = also
        self.loop: Any = None
        self.raised: Exception | None = None

    def describe(self, model: BackendModel, device: Device) -> ModelIO:
        return ModelIO((), ())

    def load(self, model: BackendModel, device: Device) -> None: ...

    def unload(self) -> None: ...

    def execute(self, requests: Sequence[Request], answers: Answers) -> None:
        self.requests += requests
        self.senders += [answers.sender(request) for request in requests]
        try:
            if self._also is not None:
                self._also(requests, answers)
        except Exception as error:
            self.raised = error
            raise


def output(*values: float, name: str = "OUTPUT0") -> list[Output]:
    return [(name, FP32, rows(*values))]


def heard(batcher: Batcher) -> list[tuple[int, ...]]:
    """All records but WANT, raw."""
    return [record for record in batcher.reader.drain() if record[0] != 8]


def value(batcher: Batcher, record: tuple[int, ...]) -> Any:
    """The first number of a response, or an error's sentence."""
    done = batcher._read((7, *record[1:]))
    return done.sentence or done.outputs["OUTPUT0"][0, 0]


def rung(batcher: Batcher) -> None:
    """Wait until the worker rings."""
    poller = select.poll()
    poller.register(batcher.bell.fd, select.POLLIN)
    assert poller.poll(10_000)
    batcher.bell.clear()


def started(batcher: Batcher, *, config: Any = CONFIG, num_requests: int = 1, **more: Any) -> Sending:
    """A worker that has executed one batch, whose senders are open."""
    backend = Sending(**more)
    backend.loop = loop = loop_of(batcher, config, backend)
    batcher.send(*[batcher.request([("INPUT0", "FP32", rows(1))]) for _ in range(num_requests)])
    assert loop.step() == 1
    return backend
