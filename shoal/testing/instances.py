"""A model instance without a process: a backend that executes a batch in the thread that asks for it.

The batch takes the same form as in a worker, a block of bytes with a header; what was answered is read back from one,
so that rows are split as they are there.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from shoal.datatypes import BY_WIRE, BYTES, decode_bytes_tensor
from shoal.errors import InternalError
from shoal.request import TensorRef, unpack_response
from shoal.shm.layout import unpack_span
from shoal.testing.event_loop import VirtualEventLoop
from shoal.testing.requests import OpenRequest
from shoal.testing.tensors import Answer, with_cause
from shoal.workers.answers import Answers
from shoal.workers.backends.backend import Backend
from shoal.workers.loop import as_shoal_error
from shoal.workers.plans import Plans
from shoal.workers.tensors import Array


class Instance(Protocol):
    """One instance of a model that is loaded."""

    name: str

    @property
    def loops(self) -> Sequence[VirtualEventLoop]:
        """In which it goes on after `execute`."""
        ...

    def execute(self, requests: Sequence[OpenRequest]) -> Mapping[int, Answer]:
        """Run one batch. Returns the answers by position; who is missing is answered through its sender, at any time.

        Never raises what the model raises.
        """
        ...

    def unload(self) -> None:
        """Let go of the model."""
        ...


class BackendInstance:
    """An instance of a backend that answers before `execute` returns, as all do that run frameworks."""

    loops: Sequence[VirtualEventLoop] = ()

    def __init__(self, name: str, backend: Backend, plans: Plans) -> None:
        self.name = name
        self._backend = backend
        self._plans = plans

    def execute(self, requests: Sequence[OpenRequest]) -> Mapping[int, Answer]:
        """Run one batch."""
        answers = ReadAnswers(len(requests), self._plans)
        try:
            self._backend.execute([each.as_seen(position) for position, each in enumerate(requests)], answers)
        except Exception as error:  # noqa: BLE001 - the rim: whatever a model raises is the answer to its requests
            answers.fail_all(with_cause(as_shoal_error(error, self._plans.signature.name, self.name), error))
        return answers.read()

    def unload(self) -> None:
        """Let go of the model."""
        self._backend.unload()


class ReadAnswers(Answers):
    """The answers to one batch, written into private memory and read from there as a front end would."""

    def read(self) -> dict[int, Answer]:
        """All of them, by position."""
        memory = memoryview(bytearray(self._nbytes))
        for plan, _, pieces in self._added:
            memory[plan.headers_offset : plan.end] = plan.headers
            for offset, piece in zip(plan.offsets, pieces, strict=True):
                data = piece if isinstance(piece, bytes) else piece.tobytes()
                memory[offset : offset + len(data)] = data
        answers: dict[int, Answer] = {}
        for position in range(self._num_requests):
            span = self.spans[position] if self.spans else 0
            answers[position] = self._errors.get(position) or self._read(memory, span)
        return answers

    def _read(self, memory: memoryview, span: int) -> Answer:
        if not span:
            return InternalError(f"model '{self._plans.signature.name}' has not answered a request")
        offset, nbytes = unpack_span(span)
        response = unpack_response(memory[offset : offset + nbytes], len(memory))
        outputs = [
            (ref.name, BY_WIRE[ref.datatype], _array(ref, memory[ref.offset : ref.offset + ref.nbytes]))
            for ref in response.outputs
        ]
        return outputs, response.parameters


def _array(ref: TensorRef, data: memoryview) -> Array:
    datatype = BY_WIRE[ref.datatype]
    if datatype is not BYTES:
        return np.frombuffer(data, datatype.dtype).reshape(ref.shape)
    strings: Array = np.empty(math.prod(ref.shape), BYTES.dtype)
    strings[:] = decode_bytes_tensor(data)
    return strings.reshape(ref.shape)
