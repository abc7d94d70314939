"""The requests in a recording: each with its inputs, its answer, its times, and the batch that it was executed in.

A file may come from another machine, and be damaged: the damage is reported, and the requests before it are read. Pure
but for the reading of files; numpy is imported with the first array.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal import errors
from shoal.datatypes import BY_WIRE, BYTES, decode_bytes_tensor
from shoal.errors import InternalError, ShoalError
from shoal.reasons import DeathDetail, error_for
from shoal.recorder.entry import ASKERS, Entry, EntryError, Outcome, RequestWords, unpack
from shoal.recorder.folder import files_of
from shoal.recorder.segment_file import Damage, FileReader
from shoal.request import NO_SEQUENCE, PLACED, Parameters, TensorRef, unpack_placed_response, unpack_request
from shoal.shm.layout import unpack_span
from shoal.timing import Points

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The most requests with earlier responses whose last response has not come yet, while a file is read (ours).
_MAX_OPEN = 65536


@dataclass(frozen=True, slots=True)
class RecordedTensor:
    """A tensor; `data` is in the form of Triton's binary tensor data extension."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes

    def array(self) -> "NDArray[Any]":
        """A copy of the tensor as an array: of `bytes` objects for BYTES, of uint16 for BF16. A redacted BYTES
        tensor has empty elements. Raises ValueError if the data does not fill the shape."""
        import numpy as np

        datatype = next(each for each in BY_WIRE.values() if each.name == self.datatype)
        if datatype is not BYTES:
            return np.frombuffer(self.data, datatype.dtype).reshape(self.shape).copy()
        elements = decode_bytes_tensor(memoryview(self.data)) if any(self.data) else [b""] * prod(self.shape)
        array: np.ndarray[Any, Any] = np.empty(len(elements), datatype.dtype)
        array[:] = elements
        return array.reshape(self.shape)


class RecordedResponse(NamedTuple):
    """A response; the outputs have the shapes that the model gave them."""

    outputs: tuple[RecordedTensor, ...]
    parameters: Parameters


class RecordedExecution(NamedTuple):
    """The batch that a request was executed in."""

    instance: str  # "mlp_0_0"
    pid: int
    worker: int  # owner id of the instance's segment in its server
    batch: int  # number of the batch of that instance
    formed_ns: int  # monotonic
    position: int  # of the request in the batch, from 0
    num_requests: int
    rows: int

    @property
    def identity(self) -> tuple[int, int, int, int]:
        """A value that the requests of one batch share, and no others."""
        return self.pid, self.worker, self.batch, self.formed_ns


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request that has ended, or was being executed when its instance died (`outcome` DIED)."""

    number: int  # in the file or folder, from 1
    key: int  # names the request in its server; a DIED one may be executed again, and is recorded again with this key
    model: str
    version: int
    outcome: Outcome
    asker: str  # the kind of client, one of ASKERS
    id: str
    inputs: tuple[RecordedTensor, ...]
    requested_outputs: tuple[str, ...]
    parameters: Parameters
    headers: Mapping[str, str]  # those that are recorded, with names in lower case
    sequence: tuple[int | str, int]  # correlation id and Triton's flags
    rows: int
    priority: int
    timeout_us: int
    arrival_ns: int  # wall clock, when the whole request had been received
    points: Points  # monotonic
    responses: tuple[RecordedResponse, ...]
    error: ShoalError | None
    execution: RecordedExecution | None  # None: it was not executed

    @property
    def total_ns(self) -> int:
        """From when the whole request had been received to its last response."""
        return self.points.end_ns - self.points.start_ns


class Recording:
    """The requests of a file, or of all files of a folder, in order. Once they are read, `damage` has each damaged
    file: the place from which it could not be read, or behind a record that is no request."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # Changed as the requests are read: by file, the last damage.
        self.damage: dict[Path, Damage] = {}

    def __iter__(self) -> Iterator[RecordedRequest]:
        """Read the requests one by one. Raises OSError for a file that cannot be opened."""
        self.damage = {}
        number = 0
        for path in files_of(self._path):
            parts = dict[int, list[RecordedResponse]]()
            with path.open("rb") as file:
                reader = FileReader(file)
                for memory in reader:
                    try:
                        found = [*_requests(unpack(memory), parts)]
                    except (EntryError, InternalError, ValueError) as error:
                        self.damage[path] = Damage(file.tell(), f"before that byte a record is no request: {error}")
                        continue
                    for request in found:
                        number += 1
                        yield replace(request, number=number)
                if reader.damage is not None:
                    self.damage[path] = reader.damage


def request_of(entry: Entry) -> RecordedRequest:
    """The request of an entry that has one, with its answer. Raises ValueError or InternalError for an entry that is
    damaged, or has several."""
    (request,) = _requests(entry, {})
    return request


def answer_of(entry: Entry) -> tuple[RecordedResponse | None, ShoalError | None, int]:
    """For an entry with one request and without inputs: the response, or the error, and the time in ns that the model
    took. Raises ValueError or InternalError for an entry that is damaged, or has several requests."""
    (words,) = entry.requests
    response, error = _answer(entry, words)
    if words.reason:
        error = _refusal(entry, words, "")
    return response, error, max(0, words.compute_end_ns - words.compute_start_ns)


def _requests(entry: Entry, parts: dict[int, list[RecordedResponse]]) -> Iterator[RecordedRequest]:
    """The requests of an entry that have ended. A response that others follow (PART) is kept in `parts`, by its
    request's key, until the last one comes."""
    for words, data in zip(entry.requests, entry.inputs, strict=True):
        response, error = _answer(entry, words)
        if words.outcome == Outcome.PART:
            if len(parts) < _MAX_OPEN and response is not None:
                parts.setdefault(words.key, []).append(response)
            continue
        yield _request(entry, words, data, parts.pop(words.key, []), response, error)


def _request(
    entry: Entry, words: RequestWords, data: memoryview, before: Sequence[RecordedResponse],
    response: RecordedResponse | None, error: ShoalError | None,
) -> RecordedRequest:  # fmt: skip
    offset, nbytes = unpack_span(words.input_header)
    request = unpack_request(data[offset : offset + nbytes], len(data))
    if words.reason:
        error = _refusal(entry, words, request.id)
    execution = None
    if words.instance:
        detail = DeathDetail.unpack(words.instance)
        execution = RecordedExecution(
            detail.instance_name(entry.groups), detail.pid, words.worker, words.batch, words.formed_ns, words.position,
            words.num_requests, words.batch_rows,
        )  # fmt: skip
    sequence = request.sequence
    return RecordedRequest(
        0, words.key, entry.model, entry.version, Outcome(words.outcome),
        ASKERS[min(words.asker, len(ASKERS) - 1)], request.id,
        _tensors(request.inputs, data), request.requested_outputs, request.parameters,
        dict(request.headers),
        sequence if sequence != NO_SEQUENCE else (0, 0), words.rows, words.priority, words.timeout_us,
        words.start_ns + entry.wall_offset_ns,
        Points(
            0, words.start_ns, words.queue_ns, words.compute_start_ns, words.input_end_ns, words.output_start_ns,
            words.compute_end_ns, words.end_ns,
        ),
        (*before, *([response] if response is not None else [])), error, execution,
    )  # fmt: skip


def _refusal(entry: Entry, words: RequestWords, request_id: str) -> ShoalError:
    return error_for(
        words.reason, words.detail, model=entry.model, version=entry.version, request_id=request_id,
        groups=entry.groups,
    )  # fmt: skip


def _answer(entry: Entry, words: RequestWords) -> tuple[RecordedResponse | None, ShoalError | None]:
    """The response or the error in an entry's output."""
    offset, nbytes = unpack_span(words.output_header)
    header = entry.output[offset : offset + nbytes]
    if words.status:
        return None, errors.from_wire(words.status, str(bytes(header), "utf-8", "replace"))
    if not nbytes:
        return None, None
    memory = entry.output[words.output_base :]
    response = unpack_placed_response(header, len(memory))
    here = [each for each in response.outputs if not each.datatype & PLACED]  # others have stayed on a GPU
    return RecordedResponse(_tensors(here, memory), response.parameters), None


def _tensors(refs: Sequence[TensorRef], memory: memoryview) -> tuple[RecordedTensor, ...]:
    return tuple(
        [
            RecordedTensor(
                each.name, BY_WIRE[each.datatype].name, each.shape,
                bytes(memory[each.offset : each.offset + each.nbytes]),
            )
            for each in refs
        ]
    )  # fmt: skip


def batches(requests: Iterable[RecordedRequest], most: int | None = None) -> list[list[RecordedRequest]]:
    """Group requests by the batch that executed them: batches in the order of their first requests, each sorted by
    position. A request that was not executed is a group of its own; one that was executed twice is in two groups. If
    `most` is given, reading ends before the group that would be one too many."""
    found: Mapping[tuple[int, ...], list[RecordedRequest]] = defaultdict(list)
    for request in requests:
        identity = (request.number,) if request.execution is None else request.execution.identity
        if len(found) == most and identity not in found:
            break
        found[identity].append(request)
    return [sorted(each, key=_position) for each in found.values()]


def _position(request: RecordedRequest) -> int:
    return 0 if request.execution is None else request.execution.position
