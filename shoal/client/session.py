"""Requests over one connection: arguments in, a ClientCall out. Shared by Client and AsyncClient."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal import errors
from shoal.client import arrays as tensors
from shoal.client.arrays import ArraysTemplate, Lent
from shoal.client.call import ClientCall, Responses
from shoal.client.connection import QUESTION_S, Connection, Waiter, question_limit_s
from shoal.client.request_arguments import RequestArguments, checked_text, version_text
from shoal.client.request_memory import LEND_NBYTES, RequestMemory
from shoal.datatypes import BYTES, checked_nbytes
from shoal.errors import ConnectionLostError, InvalidArgumentError, ShoalError, UnavailableError
from shoal.memo import Memo
from shoal.shared_settings import MIB
from shoal.shm.layout import unpack_span
from shoal.shm.slab import Block
from shoal.star.models import ModelEntry
from shoal.star.outgoing import OutgoingRequest

#: Larger tensors get blocks of their own, in or outside the slab, so that the block of the request itself always fits
#: into the slab.
BESIDE_NBYTES = 1 * MIB
#: The largest header that the server reads (batcher/guests.py).
MAX_HEADER_BYTES = 1 << 20


class Session:
    """Validates and submits the requests of one connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._memory = RequestMemory(connection.free_later)
        self._responses = Responses(connection)
        # Changed by submit; without a lock: a thread that does not see another thread's entry validates the request
        # again.
        self._num_changes = -1
        self._templates = Memo[Any, ArraysTemplate]("client_request", tensors.MAX_TEMPLATES)

    def empty(self, model: str, name: str, shape: tuple[int, ...], version: str | int = "") -> NDArray[Any]:
        """An uninitialised array, for an input of a model, in memory that requests can name. May wait for the
        supervisor. Raises ShoalError."""
        entry = self.find(checked_text("model", model), version)
        spec = entry.signature.inputs.get(checked_text("name", name))
        if spec is None:
            raise InvalidArgumentError(f"unexpected inference input '{name}' for model '{model}'")
        if spec.datatype is BYTES:
            raise InvalidArgumentError(f"input '{name}' of model '{model}' holds strings, which take no fixed place")
        nbytes = checked_nbytes(shape, spec.datatype.itemsize)
        return self._memory.array(self._allocate_beside(nbytes), shape, spec.datatype)

    def _allocate_beside(self, nbytes: int) -> Block:
        connection = self.connection
        connection.tidy()
        try:
            try:
                return connection.shared.allocate_beside(max(1, nbytes))
            except UnavailableError:
                if not self._memory.drop_spare():
                    raise
                connection.tidy()
                return connection.shared.allocate_beside(max(1, nbytes))
        except OSError as error:
            raise ConnectionLostError(f"the server is gone: {error}") from error

    def find(self, model: str, version: str | int, limit_s: float = QUESTION_S) -> ModelEntry:
        """The version that a request to `model` and `version` goes to; may wait for the supervisor, for `limit_s`
        seconds at most. Raises ShoalError.

        The version may have no instance at the moment: then its requests wait for one, as over HTTP.
        """
        try:
            return self._find(model, version)
        except ShoalError:
            self.connection.catch_up(limit_s)  # a message that is not applied yet may say that the model is loaded
            return self._find(model, version)

    def _find(self, model: str, version: str | int) -> ModelEntry:
        return self.connection.models.lookup(model, version_text(version) or None)

    def needs_time(self, asked: RequestArguments) -> bool:
        """Whether `submit` may wait for the supervisor: for a model that is not known to be ready, or a large array."""
        try:
            self._find(asked.model, asked.version)
            return any(
                isinstance(array, np.ndarray) and array.nbytes > BESIDE_NBYTES and self._memory.find(array) is None
                for array in asked.inputs.values()
            )
        except ShoalError:
            return True
        except (AttributeError, TypeError):  # an argument of a wrong type, which `submit` refuses
            return False

    def submit(self, asked: RequestArguments, notify: Callable[[], None], *, is_stream: bool = False) -> ClientCall:
        """Validate and submit a request; `notify` is called when a reply has arrived. Raises ShoalError."""
        connection = self.connection
        if connection.models.num_changes != self._num_changes:
            self._num_changes = connection.models.num_changes
            self._templates.entries.clear()
            self._responses.forget()
        try:
            key = self._key(asked)
            template = self._templates.entries.get(key) if key is not None else None
        except (AttributeError, TypeError):  # `inputs` is no dict, or a name is no text and cannot be hashed
            asked.check()
            raise
        if template is None:
            return self._submit_checked(key, asked, notify, is_stream=is_stream)
        _check_kind(template.entry, is_stream=is_stream)
        arrays = tuple(asked.inputs.values())
        kept = arrays if template.lends else None
        return self._hand_over(asked, template, lambda memory: template.write(memory, arrays), kept, notify)

    def _key(self, asked: RequestArguments) -> Any:
        """What the template of a validated request is kept by: equal for requests that differ only in their tensors'
        contents; None if the request must be validated. Raises InvalidArgumentError for an argument that no request
        carries."""
        if not asked.is_plain:
            asked.check()
            if not asked.is_plain:
                return None
        key: list[Any] = [asked.model, asked.version, tuple(asked.outputs or ())]
        for name, array in asked.inputs.items():
            if type(array) is not np.ndarray:
                asked.check()
                return None
            key += (name, array.dtype, array.shape)
            if array.nbytes >= LEND_NBYTES:
                where = self._memory.find(array)
                if where is None and array.nbytes > BESIDE_NBYTES:
                    asked.check()
                    return None
                key.append(where)
        return tuple(key)

    def _submit_checked(
        self, key: Any, asked: RequestArguments, notify: Callable[[], None], *, is_stream: bool
    ) -> ClientCall:
        if key is not None:
            asked.check()
        entry = self.find(asked.model, asked.version, question_limit_s(asked.timeout))
        _check_kind(entry, is_stream=is_stream)
        arrays = tensors.as_arrays(entry, asked.inputs)
        lent = {name: where for name, array in arrays.items() if (where := self._memory.find(array)) is not None}
        outgoing = tensors.prepare(entry, arrays, asked, lent)
        for name, array in arrays.items():
            if array.nbytes > BESIDE_NBYTES and name not in lent and array.dtype.kind not in "OSU":
                datatype = entry.signature.inputs[name].datatype
                arrays[name] = copy = self._memory.copy(array, datatype, self._allocate_beside)
                lent[name] = self._memory.find(copy) or Lent(0, 0)
                outgoing = tensors.prepare(entry, arrays, asked, lent)

        def write(memory: memoryview) -> int:
            span = outgoing.write(memory)
            if unpack_span(span)[1] > MAX_HEADER_BYTES:
                raise InvalidArgumentError(
                    f"names and parameters of a request may have at most {MAX_HEADER_BYTES} bytes"
                )
            if key is not None and (template := tensors.template_of(outgoing, arrays, memory, span)) is not None:
                self._templates.keep(key, template)
            return span

        return self._hand_over(asked, outgoing, write, arrays if lent else None, notify)

    def _hand_over(
        self,
        asked: RequestArguments,
        checked: ArraysTemplate | OutgoingRequest,
        write: Callable[[memoryview], int],
        kept: object,
        notify: Callable[[], None],
    ) -> ClientCall:
        """Submit a request in a block that `write` fills, returning the header's span; `kept` is referenced until the
        last reply."""
        connection, entry = self.connection, checked.entry
        block = connection.allocate(checked.nbytes, entry.model_id)
        try:
            span, start_ns = write(block.memory), time.monotonic_ns()
            # The timeout of a request to a decoupled model limits the wait for each response, not the execution.
            deadline_ns = 0 if entry.is_decoupled else asked.answer_by_ns(start_ns)
        except BaseException:
            connection.shared.free(block.ref)
            raise
        waiter = Waiter(notify, kept, wants_timing=asked.timing)
        connection.submit(waiter, checked, asked, block, span, start_ns, deadline_ns)
        return ClientCall(self._responses, asked, entry, waiter, start_ns)


def _check_kind(entry: ModelEntry, *, is_stream: bool) -> None:
    if entry.is_decoupled and not is_stream:
        raise errors.UnsupportedError(
            f"model '{entry.name}' may answer a request any number of times; ask it with stream()"
        )
